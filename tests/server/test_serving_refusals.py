"""What is refused: by name, in OpenAI's form, with no path and no trace; whatever is sent, never a failure of ours."""

import asyncio
import json
import random
import threading
from dataclasses import replace

import pytest

from http_calls import ask, call
from winnow.policies.registry import POLICIES
from winnow.server import doors
from winnow.server.errors import clean
from winnow.server.fields import NEUTRAL

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = {"prompt": "ab", "max_tokens": 2}
TALK = {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 2}


def error(reply, status=400):
    assert reply.status == status, reply.body
    assert list(reply.json) == ["error"]
    found = reply.json["error"]
    assert set(found) == {"message", "type", "param", "code"}
    assert isinstance(found["message"], str)
    assert found["message"]
    for inside in ("Traceback", "site-packages", ".py", "/work", "pydantic", "0x"):
        assert inside not in found["message"]
    return found


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        (COMPLETIONS, {"max_tokens": 2}, "prompt", "Field required"),
        (COMPLETIONS, {**PROMPT, "prompt": ""}, "prompt", "empty"),
        (COMPLETIONS, {**PROMPT, "prompt": []}, "prompt", "not empty"),
        (COMPLETIONS, {**PROMPT, "prompt": [[]]}, "prompt", "not empty"),
        (COMPLETIONS, {**PROMPT, "prompt": {"a": 1}}, "prompt", "must be text, token ids"),
        (COMPLETIONS, {**PROMPT, "prompt": [1, 259]}, "prompt", "ids are 0 to 258"),
        (COMPLETIONS, {**PROMPT, "prompt": [1, True]}, "prompt", "ids are 0 to 258"),
        (COMPLETIONS, {**PROMPT, "prompt": "a\ud800"}, "prompt", "half of a character"),
        (COMPLETIONS, {**PROMPT, "temperature": "hot"}, "temperature", "valid number"),
        (COMPLETIONS, {**PROMPT, "temperature": -1}, "temperature", "temperature=-1.0 must be at least 0"),
        (COMPLETIONS, {**PROMPT, "max_tokens": 0}, "max_tokens", "max_tokens=0 must be at least 1"),
        (COMPLETIONS, {**PROMPT, "max_tokens": "9"}, "max_tokens", "valid integer"),
        (COMPLETIONS, {**PROMPT, "max_tokens": 10**9}, None, "exceed the model's 32768 positions"),
        (COMPLETIONS, {**PROMPT, "n": 2, "temperature": 0}, "n", "greedy"),
        (COMPLETIONS, {**PROMPT, "n": 1000}, "n", "less than or equal to 128"),
        (COMPLETIONS, {**PROMPT, "seed": -4}, "seed", "seed=-4"),
        (COMPLETIONS, {**PROMPT, "logprobs": 21}, "logprobs", "20"),
        (COMPLETIONS, {**PROMPT, "logprobs": True}, "logprobs", "valid integer"),
        (COMPLETIONS, {**PROMPT, "logit_bias": {"x": 1}}, "logit_bias", "token ids with biases"),
        (COMPLETIONS, {**PROMPT, "logit_bias": {"999": 1}}, "logit_bias", "token 999 is unknown"),
        (COMPLETIONS, {**PROMPT, "stop_token_ids": [-244289]}, "stop_token_ids", "ids are 0 to 258"),
        (COMPLETIONS, {**PROMPT, "logit_bias": {"9": 101}}, "logit_bias", "-100 to 100"),
        (COMPLETIONS, {**PROMPT, "stop": ["a"] * 17}, "stop", "at most 16"),
        (COMPLETIONS, {**PROMPT, "stop": ""}, "stop", "not empty"),
        (COMPLETIONS, {**PROMPT, "stop": 5}, "stop", "valid string"),
        (COMPLETIONS, {**PROMPT, "stream_options": {}}, "stream_options", "stream"),
        (COMPLETIONS, {**PROMPT, "suffix": "x"}, "suffix", "suffix: not supported by this server"),
        (COMPLETIONS, {**PROMPT, "best_of": 3}, "best_of", "best_of: not supported by this server"),
        (COMPLETIONS, {**PROMPT, "user": "me"}, "user", "user: not supported by this server"),
        (COMPLETIONS, {**PROMPT, "temprature": 1}, "temprature", "did you mean temperature?"),
        (COMPLETIONS, {**PROMPT, "messages": []}, "messages", "there is no such field"),
        (COMPLETIONS, {**PROMPT, "plan": "nosuch"}, "plan", "unknown policy 'nosuch'"),
        (COMPLETIONS, {**PROMPT, "plan": "lococo(budget=8)"}, "plan", "no convolutions"),
        (COMPLETIONS, {**PROMPT, "plan": "lazyllm", "echo": True, "logprobs": 1}, "echo", "leaves some out"),
        (COMPLETIONS, {**PROMPT, "plan": "random_drop", "echo": True, "logprobs": 1}, "echo", "random_drop leaves"),
        (COMPLETIONS, {**PROMPT, "plan": "locret(heads='/etc')"}, "plan", "clients may not"),
        (COMPLETIONS, {**PROMPT, "plan": "prompt_compression(scorer='gpt2')"}, "plan", "clients may not"),
        (COMPLETIONS, {**PROMPT, "plan": "prompt_compression"}, "plan", "--allow-plans"),
        (COMPLETIONS, {**PROMPT, "plan": "mapped(resident_mib=1)"}, "plan", "takes room on the disk"),
        (COMPLETIONS, {**PROMPT, "plan": "random_heads(seed=3)"}, "plan", "memory for heads of its own"),
        (COMPLETIONS, {**PROMPT, "response_format": {"type": "xml"}}, "response_format", "does not match"),
        (
            COMPLETIONS, {**PROMPT, "response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema", "Field required",
        ),
        (
            COMPLETIONS, {**PROMPT, "response_format": {"type": "json_object"}, "stop_token_ids": [5]},
            "response_format", "response_format says where the text ends",
        ),
        (CHAT, {"max_tokens": 2}, "messages", "Field required"),
        (CHAT, {**TALK, "messages": []}, "messages", "at least 1"),
        (CHAT, {**TALK, "messages": ["hi"]}, "messages.0", "valid dictionary"),
        (CHAT, {**TALK, "messages": [{"role": "user"}]}, "messages.0.content", "required"),
        (CHAT, {**TALK, "messages": [{"role": "user", "content": "a", "name": "b"}]}, "messages.0.name",
         "there is no such field"),
        (CHAT, {**TALK, "messages": [{"role": "user", "content": "a", "tool_calls": [{}]}]}, "messages.0.tool_calls",
         "not supported"),
        (CHAT, {**TALK, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
         "messages.0.content", "image_url"),
        (CHAT, {**TALK, "tools": [{"type": "function"}]}, "tools", "tools: not supported by this server"),
        (CHAT, {**TALK, "top_logprobs": 3}, "top_logprobs", "needs logprobs"),
        (CHAT, {**TALK, "max_completion_tokens": 3}, "max_tokens", "differ"),
        (CHAT, {**TALK, "logprobs": 3}, "logprobs", "boolean"),
        (CHAT, {**TALK, "echo": True}, "echo", "there is no such field"),
        (CHAT, [], None, "valid dictionary"),
        (COMPLETIONS, {**PROMPT, "max_tokens": 10**400}, "max_tokens", "less than or equal to 2147483647"),
        (CHAT, {**TALK, "max_tokens": None, "max_completion_tokens": 2**31}, "max_completion_tokens", "less than or"),
        (COMPLETIONS, {**PROMPT, "plan": "a" + "-a" * 600}, "plan", "cannot be read"),
        (COMPLETIONS, {**PROMPT, "plan": "streaming(sink=" + "-" * 900 + "1)"}, "plan", "cannot be read"),
        ("/tokenize", {"prompt": "a\ud800", "add_special_tokens": False}, "prompt", "half of a character"),
        ("/tokenize", {}, None, "one of prompt and messages"),
        ("/tokenize", {**TALK, "max_tokens": None, "add_special_tokens": True}, "add_special_tokens", "about a prompt"),
        ("/detokenize", {"tokens": [999]}, "tokens", "ids are 0 to 258"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(app, path, body, param, words):
    found = error(ask(app, path, body))
    assert words in found["message"]
    assert (found["param"], found["type"]) == (param, "invalid_request_error")


def test_values_that_ask_for_nothing_are_as_good_as_left_out(app):
    neutral = {name: values[-1] for name, values in NEUTRAL.items() if values} | {"user": None, "nosuch": None}
    assert ask(app, CHAT, {**TALK, **neutral}).status == 200
    said = {"role": "assistant", "content": "b", "refusal": None, "tool_calls": None, "annotations": []}
    assert ask(app, CHAT, {**TALK, "messages": [*TALK["messages"], said, *TALK["messages"]]}).status == 200


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "Field required"),
        (b"{", "the body is no JSON (Expecting property name enclosed in double quotes, at character 1)"),
        (b"\xff\xfe", "JSON"),
        (b"[" * 50_000, "JSON"),
        (b'{"prompt": ' * 5_000 + b"1" + b"}" * 5_000, "JSON"),
        (b'{"prompt": "a", "temperature": NaN}', "temperature"),
        (b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}", ""),
    ],
)
def test_bodies_that_are_no_request(app, raw, words):
    assert words in error(ask(app, COMPLETIONS, raw=raw))["message"]


def test_a_body_of_another_type_is_not_read(app):
    reply = ask(app, COMPLETIONS, PROMPT, headers=[("content-type", "text/plain")])
    error(reply)


def test_paths_and_methods(app):
    for path in ("/v1/responses", "/chat/completions"):  # no part of this server, and an address without its /v1
        found = error(ask(app, path, {}), 404)
        assert found["code"] == "not_found"
        assert found["message"].startswith(f"there is no {path[1:]} here; v1/completions and v1/chat/completions are")
    found = error(ask(app, COMPLETIONS), 405)
    assert found["code"] == "method_not_allowed"
    assert found["message"].startswith("v1/completions takes no GET;")
    assert error(ask(app, "/", PROMPT), 405)["message"].startswith("/ takes no POST;")
    found = error(ask(app, COMPLETIONS, {**PROMPT, "model": "gpt-5"}), 404)
    assert (found["code"], found["param"]) == ("model_not_found", "model")
    assert error(ask(app, "/v1/models/some/other"), 404)["code"] == "model_not_found"
    assert ask(app, COMPLETIONS, {**PROMPT, "model": "tiny"}).status == 200


def test_bodies_that_are_too_large(new):
    _, app = new(max_body_mib=0.001)
    assert error(ask(app, COMPLETIONS, {**PROMPT, "prompt": "a" * 2000}), 413)["code"] == "body_too_large"
    unsaid = ask(app, COMPLETIONS, {**PROMPT, "prompt": "a" * 2000}, headers=[("content-length", "x")])
    assert error(unsaid, 413)["code"] == "body_too_large"


def test_bodies_that_never_arrive(new, monkeypatch):
    """They give their place at the door back; a whole one may be answered as slowly as it takes."""
    service, app = new()
    sent = []

    async def stuck():
        for _ in range(2):
            yield {"type": "http.request", "body": b"{", "more_body": True}
        await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    monkeypatch.setattr(doors, "PAUSE_S", 0.05)
    scope = {"type": "http", "method": "POST", "path": COMPLETIONS, "headers": [], "query_string": b""}
    pieces = stuck()
    asyncio.run(app(scope, lambda: anext(pieces), send))
    assert sent[0]["status"] == 408
    assert "nothing more of the body came" in json.loads(sent[1]["body"])["error"]["message"]
    assert service.door.inside == 0


@pytest.mark.parametrize("stream", [True, False])
def test_answers_that_nobody_reads(new, monkeypatch, stream):
    """Their requests end, and they give their place at the door back."""
    service, app = new()
    monkeypatch.setattr(doors, "PAUSE_S", 0.2)
    sent, body = [], json.dumps({**PROMPT, "max_tokens": 200, "stream": stream, "ignore_eos": True}).encode()
    asked = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        return asked.pop() if asked else await asyncio.Event().wait()

    async def send(message):
        sent.append(message)
        if len(sent) > (3 if stream else 0):
            await asyncio.Event().wait()

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": COMPLETIONS, "headers": headers, "query_string": b""}

    async def unread():
        await app(scope, receive, send)
        while service.engine.running or service.engine.waiting:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(unread(), 30))
    assert sent[0]["status"] == 200
    assert not any(message["type"].endswith("body") and not message.get("more_body") for message in sent)
    assert service.door.inside == 0


def test_prompts_that_are_too_long(app, llm, monkeypatch):
    found = error(ask(app, COMPLETIONS, {**PROMPT, "prompt": [5] * 32768, "max_tokens": 9}))
    assert found["code"] == "context_length_exceeded"
    monkeypatch.setattr(llm.decoder, "shape", replace(llm.decoder.shape, max_positions=4))
    found = error(ask(app, COMPLETIONS, {**PROMPT, "prompt": "a" * 2049}))
    assert (found["code"], found["param"]) == ("context_length_exceeded", "prompt")
    assert "2,049 characters" in found["message"]


def test_keys(new):
    _, app = new(api_key=("first", "second"))
    for headers in (
        [],
        [("authorization", "Bearer third")],
        [("authorization", "first")],
        [("authorization", "Bearer")],
    ):
        reply = ask(app, COMPLETIONS, PROMPT, headers=headers)
        assert error(reply, 401)["code"] == "invalid_api_key"
        assert reply.headers["www-authenticate"] == "Bearer"
    for key in ("first", "second"):
        assert ask(app, COMPLETIONS, PROMPT, headers=[("authorization", f"Bearer {key}")]).status == 200
    assert ask(app, "/metrics").status == 401
    assert ask(app, "/health").status == 200


def test_other_origins_are_not_answered_unless_they_are_allowed(new):
    asked = [("origin", "http://page"), ("access-control-request-method", "POST")]
    assert "access-control-allow-origin" not in ask(new()[1], "/health", headers=asked[:1]).headers
    _, app = new(allow_origin=("http://page",), api_key=("key",))
    preflight = ask(app, COMPLETIONS, method="OPTIONS", headers=asked)
    assert (preflight.status, preflight.headers["access-control-allow-origin"]) == (200, "http://page")
    refused = ask(app, COMPLETIONS, PROMPT, headers=asked[:1])
    assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, "http://page")


@pytest.mark.parametrize("name", POLICIES)
def test_what_names_files_is_known(name):
    """A parameter that may be any text, or none, is one that names a directory or a model."""
    hints = POLICIES[name].__annotations__
    free = {field for field, hint in hints.items() if hint == "str | None" or hint == str | None}
    assert free <= set(POLICIES[name].loads)


def test_messages_name_no_path():
    said = "cannot read /home/me/models/x.gguf: or ~/secret/file, but 1/2 and and/or stay\nTraceback"
    assert clean(said) == "cannot read (a path): or (a path), but 1/2 and and/or stay Traceback"
    assert clean("a\ud800") == "a\\ud800"
    assert len(clean("x" * 5000)) == 1000


VALUES = [
    None, True, False, 0, 1, -1, 2**31, 2**64, 10**40, 0.5, -0.5, 1e308, "", "x", "full", "a\ud800", "\x00", "9" * 400,
    [], [None], [1], ["a"], [[1]], [[]], [{}], {}, {"a": 1}, {"type": "text"}, {"type": "json_object"}, {"1": 1},
    {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": ["x"], "$ref": "#/a"}}},
    [{"role": "user", "content": "a"}], [{"role": "user", "content": [{"type": "text"}]}], [{"role": 1, "content": {}}],
]  # fmt: skip
NAMES = [
    "prompt", "messages", "model", "plan", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k",
    "min_p", "n", "stop", "seed", "logprobs", "top_logprobs", "echo", "stream", "stream_options", "logit_bias",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "ignore_eos", "response_format",
    "stop_token_ids", "tokens", "add_special_tokens", "tools", "nosuch", "",
]  # fmt: skip


def test_whatever_is_sent_the_answer_is_no_failure(new):
    """Some hundred bodies, each with a field or three that are of no use."""
    service, app = new(default_max_tokens=2)
    source = random.Random(0)

    async def send():
        for number in range(400):
            path, good = source.choice([(COMPLETIONS, PROMPT), (CHAT, TALK), ("/tokenize", {"prompt": "a"})])
            body = dict(good)
            for _ in range(source.choice((1, 1, 2, 3))):
                body[source.choice(NAMES)] = source.choice(VALUES)
            raw = json.dumps(body).encode()
            if number % 7 == 0:
                raw = bytearray(raw)
                raw[source.randrange(len(raw))] ^= 1 << source.randrange(8)
            reply = await asyncio.wait_for(call(app, "POST", path, raw=bytes(raw)), 20)
            assert reply.status in (200, 400, 404), (body, reply.body)
            if reply.status != 200:
                error(reply, reply.status)
            elif reply.headers["content-type"].startswith("text/event-stream"):
                assert reply.done, (body, reply.body)

    asyncio.run(send())
    assert service.door.inside == 0


@pytest.mark.parametrize(
    ("origin", "status"),
    [(None, 200), ("http://localhost:3000", 200), ("http://127.0.0.1:8000", 200), ("http://[::1]:8000", 200),
     ("https://mine.example", 200), ("http://evil.example:8000", 403), ("null", 403), ("http://[", 403)],
)  # fmt: skip
def test_a_page_whose_name_has_come_to_stand_for_this_machine(new, origin, status):
    """A keyless server of this machine alone answers its own pages and the allowed ones, whatever name they ask by."""
    _, app = new(allow_origin=("https://mine.example",))
    headers = [("host", "evil.example:8000")] + ([("origin", origin)] if origin else [])
    reply = ask(app, COMPLETIONS, PROMPT, headers=headers)
    assert reply.status == status
    if status == 403:
        assert "--allow-origin" in reply.json["error"]["message"]


@pytest.mark.parametrize("settings", [{"host": "0.0.0.0"}, {"api_key": ("secret",)}, {"allow_origin": ("*",)}])
def test_other_servers_leave_that_to_keys_and_browsers(new, settings):
    _, app = new(**settings)
    headers = [("origin", "http://a.example"), ("authorization", "Bearer secret")]
    assert ask(app, COMPLETIONS, PROMPT, headers=headers).status == 200


def test_time_counts_from_the_arrival_of_a_request(new):
    """Before its body is whole, too."""
    _, app = new(timeout_s=0.3)
    sent, body = [], json.dumps(PROMPT).encode()

    async def receive():
        await asyncio.sleep(0.2)
        return pieces.pop(0) if pieces else await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    pieces = [{"type": "http.request", "body": body[at : at + 9], "more_body": at < 9} for at in (0, 9)]
    pieces[1]["body"] = body[9:]
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": COMPLETIONS, "headers": headers, "query_string": b""}
    asyncio.run(asyncio.wait_for(app(scope, receive, send), 30))
    assert sent[0]["status"] == 408


@pytest.mark.parametrize(("path", "body"), [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [5]})])
def test_what_waits_for_the_thread_that_encodes_has_a_deadline(new, path, body):
    service, app = new(timeout_s=0.2)
    free = threading.Event()

    async def asked():
        busy = asyncio.ensure_future(service.aside(free.wait, 20))
        reply = await call(app, "POST", path, body)
        free.set()
        await busy
        return reply

    reply = asyncio.run(asyncio.wait_for(asked(), 30))
    assert (reply.status, reply.json["error"]["code"]) == (408, "timeout")


def test_a_prompt_whose_client_has_left_is_not_encoded(new):
    """One thread encodes: what waits for it is left out where nobody waits any more."""
    service, app = new()
    free, begun, encoded = threading.Event(), threading.Event(), []

    def work():
        begun.set()
        free.wait(20)

    whole = service.aside

    async def aside(work, *given):
        return await whole(lambda: (encoded.append(work), work(*given))[1])

    async def asked():
        busy = asyncio.ensure_future(service.aside(work))
        await asyncio.to_thread(begun.wait, 20)
        service.aside, gone = aside, asyncio.Event()
        waiting = [asyncio.ensure_future(call(app, "POST", COMPLETIONS, PROMPT, gone=gone)) for _ in range(5)]
        await asyncio.sleep(0.1)
        gone.set()
        await asyncio.gather(*waiting)
        free.set()
        await busy
        return await call(app, "POST", COMPLETIONS, PROMPT)

    assert asyncio.run(asyncio.wait_for(asked(), 30)).status == 200
    assert len(encoded) == 2  # the last one's prompt, and what is before its answer
