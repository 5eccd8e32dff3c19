"""What clients get: the answers of LLM.generate in OpenAI's form, streamed and not."""

import json
from dataclasses import replace

import pytest

from http_calls import ask
from tokenizers_for_tests import byte_tokenizer, fallback_tokenizer, spacing_tokenizer
from winnow import Plan, SamplingParams
from winnow.engine.bound import bound_bytes
from winnow.engine.request import Completion, Output, Request
from winnow.server.spelling import Spelling
from winnow.server.views import CompletionView
from winnow.stats import Stats

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PRINTABLE = {str(token): -100 for token in range(259) if not 3 + 32 <= token < 3 + 94}  # ids of the others, banned
SHORT = {"prompt": "The ferry", "max_tokens": 9, "ignore_eos": True, "temperature": 0, "logit_bias": PRINTABLE}
SAMPLED = {**SHORT, "temperature": 1.3, "seed": 11, "n": 3}
TALK = {key: value for key, value in SHORT.items() if key != "prompt"} | {
    "messages": [{"role": "user", "content": "Where to?"}]
}
GREEDY = SamplingParams(max_tokens=9, ignore_eos=True, logit_bias={int(key): -100.0 for key in PRINTABLE})
STREAMING = "streaming(sink=2, recent=6)"


def joined(reply):
    """What a stream's choices come to, by index; checks the order of its events."""
    assert (reply.status, reply.done, reply.ended) == (200, True, True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    found = {}
    for event in reply.events:
        for choice in event["choices"]:
            delta = choice.get("delta", {"content": choice.get("text", "")})
            whole = found.setdefault(choice["index"], {"text": "", "finish_reason": None, "logprobs": None})
            assert whole["finish_reason"] is None, "something came after the end"
            whole["text"] += delta.get("content") or ""
            whole["finish_reason"] = choice["finish_reason"]
            for name, values in (choice["logprobs"] or {}).items():
                whole["logprobs"] = whole["logprobs"] or {}
                before = whole["logprobs"].get(name)
                whole["logprobs"][name] = values if before is None else before + values
    return found


def whole(reply):
    """The same of an answer that came at once."""
    assert reply.status == 200, reply.body
    return {
        choice["index"]: {
            "text": choice["text"] if "text" in choice else choice["message"]["content"],
            "finish_reason": choice["finish_reason"],
            "logprobs": choice["logprobs"],
        }
        for choice in reply.json["choices"]
    }


def test_a_completion_is_that_of_generate(app, llm):
    reply = ask(app, COMPLETIONS, SHORT)
    [expected] = llm.generate("The ferry", GREEDY)
    assert whole(reply)[0] == {"text": expected.text, "finish_reason": "length", "logprobs": None}
    body = reply.json
    assert (body["object"], body["model"], body["id"][:5]) == ("text_completion", "tiny", "cmpl-")
    stats, shape = expected.stats, llm.decoder.shape
    assert body["usage"] == {
        "prompt_tokens": 9,
        "completion_tokens": 9,
        "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 0},
        "winnow": {
            "plan": "full",
            "cached_tokens": 0,
            "rows_computed": stats.rows_computed,
            "rows_full": stats.rows_full,
            "units_read": stats.units_read,
            "units_full": stats.units_full,
            "pairs_read": stats.pairs_read,
            "pairs_full": stats.pairs_full,
            "total_bytes": stats.total_bytes,
            "total_bytes_full": bound_bytes(Plan(), shape, 9, 8, 16),
            "slow_steps": 8,
            "slow_steps_full": 8,
        },
    }
    assert stats.total_bytes == bound_bytes(Plan(), shape, 9, 8, 16)


def test_a_chat_is_that_of_generate(app, llm):
    reply = ask(app, CHAT, TALK)
    [expected] = llm.chat(TALK["messages"], GREEDY)
    [choice] = reply.json["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected.text, "refusal": None}
    assert reply.json["object"] == "chat.completion"
    assert reply.json["usage"]["prompt_tokens"] == expected.stats.prompt_tokens
    parts = [{"role": "user", "content": [{"type": "text", "text": "Where "}, {"type": "text", "text": "to?"}]}]
    assert whole(ask(app, CHAT, {**TALK, "messages": parts})) == whole(reply)
    assert whole(ask(app, CHAT, {**TALK, "max_tokens": None, "max_completion_tokens": 9})) == whole(reply)


def test_the_default_is_sampled_and_seeds_repeat_it(app, llm):
    given = {key: value for key, value in SAMPLED.items() if key not in ("temperature",)}
    first, again = ask(app, COMPLETIONS, given), ask(app, COMPLETIONS, given)
    assert whole(first) == whole(again)
    expected = llm.generate("The ferry", replace(GREEDY, temperature=1.0, seed=11, n=3))
    assert [whole(first)[index]["text"] for index in range(3)] == [each.text for each in expected]
    assert len({each["text"] for each in whole(first).values()}) == 3


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ([87, 107, 104], [[87, 107, 104]]),
        (["ab", "cde"], ["ab", "cde"]),
        ([[87, 107], [104]], [[87, 107], [104]]),
        (["ab", [104, 9]], ["ab", [104, 9]]),
    ],
)
def test_prompts_are_text_or_ids_or_lists_of_them(app, llm, prompt, prompts):
    reply = ask(app, COMPLETIONS, {**SHORT, "prompt": prompt})
    expected = llm.generate(prompts, GREEDY)
    assert [whole(reply)[index]["text"] for index in range(len(prompts))] == [each.text for each in expected]
    assert reply.json["usage"]["prompt_tokens"] == sum(each.stats.prompt_tokens for each in expected)
    assert whole(reply) == joined(ask(app, COMPLETIONS, {**SHORT, "prompt": prompt, "stream": True}))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, SHORT),
        (COMPLETIONS, SAMPLED),
        (COMPLETIONS, {**SAMPLED, "prompt": ["ab", "cde"], "logprobs": 2}),
        (COMPLETIONS, {**SHORT, "echo": True}),
        (COMPLETIONS, {**SHORT, "echo": True, "logprobs": 1}),
        (COMPLETIONS, {**SHORT, "logit_bias": None, "max_tokens": 60}),  # bytes that are no characters
        (COMPLETIONS, {**SHORT, "presence_penalty": 1.5, "frequency_penalty": 0.5, "plan": STREAMING}),
        (CHAT, TALK),
        (CHAT, {**TALK, "temperature": 1.0, "seed": 4, "n": 2, "logprobs": True, "top_logprobs": 3}),
        (CHAT, {**TALK, "logprobs": True}),
    ],
)
def test_a_stream_joins_to_the_whole(new, path, body):
    _, app = new(retain_mib=0.0)  # both are computed in the same way
    expected = whole(ask(app, path, body))
    reply = ask(app, path, {**body, "stream": True})
    assert joined(reply) == expected
    assert all("usage" not in event for event in reply.events)
    assert len({event["id"] for event in reply.events}) == 1
    with_usage = ask(app, path, {**body, "stream": True, "stream_options": {"include_usage": True}})
    assert joined(with_usage) == expected
    *before, last = with_usage.events
    assert all(event["usage"] is None for event in before)
    assert last["choices"] == []
    assert last["usage"] == ask(app, path, body).json["usage"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_costs_so_far_stand_in_every_chunk(new, path):
    _, app = new(retain_mib=0.0)
    said = {"prompt": ["ab", "cd"]} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**said, "max_tokens": 9, "n": 2, "seed": 1, "ignore_eos": True, "stream": True, "stream_options": options}
    *chunks, last = ask(app, path, body).events
    told = [chunk["usage"] for chunk in chunks if chunk["usage"] is not None]
    counts = [usage["completion_tokens"] for usage in told]
    samples = 2 * len(said.get("prompt", [1]))
    assert counts == sorted(counts)
    assert 1 <= counts[0] < counts[-1]
    assert counts[-1] == last["usage"]["completion_tokens"] == 9 * samples
    assert told[-1] == last["usage"]
    assert all(0 < usage["winnow"]["rows_computed"] <= last["usage"]["winnow"]["rows_computed"] for usage in told)
    without = ask(app, path, {**body, "stream_options": {"continuous_usage_stats": True}}).events
    assert without[-1]["usage"] == last["usage"]
    assert len(without) == len(chunks)


def test_a_chat_streams_its_role_first_and_a_token_at_a_time(app):
    events = ask(app, CHAT, {**TALK, "stream": True}).events
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len([event for event in events if event["choices"][0]["delta"].get("content")]) == 9
    assert events[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_stop_string_ends_the_text(app, path):
    body = SHORT if path == COMPLETIONS else TALK
    text = whole(ask(app, path, body))[0]["text"]
    stop = [text[4:6], "nowhere in it"]
    expected = text[: text.index(text[4:6])]
    for stopped in (ask(app, path, {**body, "stop": stop}), ask(app, path, {**body, "stop": text[4:6]})):
        assert whole(stopped)[0] == {"text": expected, "finish_reason": "stop", "logprobs": None}
    streamed = ask(app, path, {**body, "stop": stop, "stream": True})
    assert joined(streamed)[0]["text"] == expected


def test_tokens_that_end(app, llm):
    [out] = llm.generate("The ferry", GREEDY)
    last = out.token_ids[3]
    reply = ask(app, COMPLETIONS, {**SHORT, "stop_token_ids": [last]})
    assert reply.json["usage"]["completion_tokens"] == out.token_ids.index(last) + 1
    later = ask(app, COMPLETIONS, {**SHORT, "stop_token_ids": [last], "min_tokens": 9})
    assert (later.json["usage"]["completion_tokens"], whole(later)[0]["finish_reason"]) == (9, "length")


def test_echo_with_probabilities_is_what_likelihoods_are_read_from(app, llm):
    """As lm_eval asks: token ids, one token more, and the probabilities of what was given."""
    ids = llm.tokenizer("A short text.")["input_ids"]
    body = {"prompt": [ids], "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234}
    [choice] = ask(app, COMPLETIONS, body).json["choices"]
    found, rows = choice["logprobs"], llm.logits(ids).log_softmax(-1)
    assert len(found["token_logprobs"]) == len(ids) + 1
    assert (found["token_logprobs"][0], found["top_logprobs"][0]) == (None, None)
    expected = [float(row[token]) for row, token in zip(rows, ids[1:], strict=False)]
    assert found["token_logprobs"][1:-1] == pytest.approx(expected, abs=1e-4)
    for top, own, row in zip(found["top_logprobs"][1:-1], found["token_logprobs"][1:-1], rows, strict=False):
        assert max(top.values()) == pytest.approx(float(row.max()), abs=1e-4)
        assert own in top.values()
    assert choice["text"].startswith("A short text.")
    assert found["tokens"][:13] == list("A short text.")
    assert found["text_offset"][:13] == list(range(13))


@pytest.mark.parametrize("asked", [{}, {"logprobs": 1}, {"n": 2, "temperature": 1.0, "logprobs": 1}])
def test_an_echo_with_nothing_new_is_the_prompt(app, asked):
    body = {"prompt": ["A short text.", "Two"], "max_tokens": 0, "echo": True, "temperature": 0, **asked}
    reply = ask(app, COMPLETIONS, body)
    longer = whole(ask(app, COMPLETIONS, {**body, "max_tokens": 1}))
    n, shown = asked.get("n", 1), whole(reply)
    for index, choice in shown.items():
        assert (choice["text"], choice["finish_reason"]) == (body["prompt"][index // n], "length")
        before = longer[index]["logprobs"]
        assert choice["logprobs"] == (before and {name: values[:-1] for name, values in before.items()})
    streamed = ask(app, COMPLETIONS, {**body, "stream": True, "stream_options": {"include_usage": True}})
    assert joined(streamed) == shown
    for usage in (reply.json["usage"], streamed.events[-1]["usage"]):
        assert (usage["completion_tokens"], usage["total_tokens"]) == (0, usage["prompt_tokens"])


def test_probabilities_of_a_chat(app, llm):
    reply = ask(app, CHAT, {**TALK, "logit_bias": None, "logprobs": True, "top_logprobs": 2, "max_tokens": 3})
    [expected] = llm.chat(TALK["messages"], SamplingParams(max_tokens=3, ignore_eos=True, logprobs=2))
    content = reply.json["choices"][0]["logprobs"]["content"]
    assert len(content) == 3
    for row, token, found in zip(content, expected.token_ids, expected.logprobs, strict=True):
        assert row["logprob"] == pytest.approx(found[token], abs=1e-5)
        assert [each["logprob"] for each in row["top_logprobs"]] == sorted(found.values(), reverse=True)[:2]
        text = llm.tokenizer.decode([token])
        assert row["token"] == text
        assert row["bytes"] == [token - 3]


@pytest.mark.parametrize("tokenizer", [byte_tokenizer(merges=[("Ã", "©")]), fallback_tokenizer()])
@pytest.mark.parametrize("text", ["é", "duck🦆", "\ufffd"])
def test_bytes_of_tokens_make_up_the_text_though_a_character_is_cut(tokenizer, text):
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    rows = Spelling(tokenizer).spoken(tokens, [{token: -1.0} for token in tokens], 1)
    assert bytes(byte for row in rows for byte in row["bytes"]).decode() == text
    assert [row["top_logprobs"][0]["bytes"] for row in rows] == [row["bytes"] for row in rows]


def test_of_two_tokens_with_one_text_the_likelier_is_shown(llm):
    spelling = Spelling(llm.tokenizer)
    halves = [3 + 0xC3, 3 + 0xE2]
    for likely, other in (halves, halves[::-1]):
        shown = spelling.classic([other], [{likely: -1.0, other: -float("inf")}], [7])
        assert shown == {
            "tokens": ["\ufffd"], "token_logprobs": [-9999.0], "top_logprobs": [{"\ufffd": -1.0}], "text_offset": [7],
        }  # fmt: skip


def test_the_space_of_a_token_is_spelled():
    tokenizer = spacing_tokenizer()
    assert tokenizer.decode([3]) == "the"  # whose space is dropped where nothing stands before it
    found = [None, {3: -0.1, 4: -0.5}, {4: -0.2}, {3: -0.3}]
    shown = Spelling(tokenizer).classic([1, 3, 4, 3], found, [0, 0, 3, 6])
    assert shown["tokens"] == ["<s>", " the", "the", " the"]
    assert shown["top_logprobs"][1] == {" the": -0.1, "the": -0.5}


def test_what_tokens_begin_at_is_a_place_in_the_text(app, llm):
    """Of the bytes of one character all begin where it does; a marker is text where the prompt is, else none."""
    written = "a€b<eos>é!"
    ids = llm.tokenizer(written)["input_ids"]
    assert llm.tokenizer.eos_token_id in ids
    places = [0, 1, 1, 1, 2, 3, 8, 8, 9]
    for prompt in (written, [ids]):
        [choice] = ask(app, COMPLETIONS, {**SHORT, "prompt": prompt, "logprobs": 1, "echo": True}).json["choices"]
        assert choice["logprobs"]["text_offset"][: len(places) + 1] == [*places, 10]
        assert choice["text"].startswith(written)


def test_tokens_of_a_stream_begin_where_those_of_the_whole_do(llm):
    params, answer = (
        SamplingParams(max_tokens=9),
        [*llm.tokenizer("€uro")["input_ids"], 2, *llm.tokenizer("é")["input_ids"]],
    )
    request = Request(0, llm.tokenizer("in ")["input_ids"], params, Plan(), frozenset())
    found = [{token: -0.5} for token in answer]
    views = [CompletionView("it", Spelling(llm.tokenizer), [request], 1, echoed=None) for _ in range(2)]
    whole = views[0].choice(Completion("€uroé", answer, "length", Stats(), logprobs=found))
    assert whole["logprobs"]["text_offset"] == [0, 0, 0, 1, 2, 3, 4, 4, 4]
    parts = [
        views[1].delta(Output("it", 0, [token], "", logprobs=[each])) for token, each in zip(answer, found, strict=True)
    ]
    assert [start for part in parts for start in part["logprobs"]["text_offset"]] == whole["logprobs"]["text_offset"]


def test_what_asks_for_nothing_is_taken(app):
    asked = {**SHORT, "prompt": "x", "top_k": -1}
    assert ask(app, COMPLETIONS, asked).status == 200
    assert ask(app, CHAT, {**TALK, "logprobs": False, "top_logprobs": 0}).status == 200


def test_a_request_says_its_plan(app, llm):
    reply = ask(app, COMPLETIONS, {**SHORT, "prompt": "x" * 40, "plan": STREAMING})
    [expected] = llm.generate("x" * 40, GREEDY, plan=STREAMING)
    assert whole(reply)[0]["text"] == expected.text
    cost = reply.json["usage"]["winnow"]
    assert cost["plan"] == STREAMING
    assert (cost["units_read"], cost["total_bytes"]) == (expected.stats.units_read, expected.stats.total_bytes)
    assert cost["units_read"] < cost["units_full"]
    assert cost["total_bytes"] < cost["total_bytes_full"]


def test_plans_that_are_allowed(new):
    _, app = new(allow_plans=(STREAMING, "snapkv(budget=80)"))
    assert ask(app, COMPLETIONS, {**SHORT, "plan": "streaming( sink=2,recent=6 )"}).status == 200
    assert ask(app, COMPLETIONS, {**SHORT, "plan": "full"}).status == 200
    reply = ask(app, COMPLETIONS, {**SHORT, "plan": "streaming(sink=2, recent=7)"})
    assert (reply.status, reply.json["error"]["param"]) == (400, "plan")
    assert reply.json["error"]["message"] == f"this server takes these plans: full, {STREAMING}, snapkv(budget=80)"
    [model] = ask(app, "/v1/models").json["data"]
    assert (model["plan"], model["plans"]) == ("full", ["full", STREAMING, "snapkv(budget=80)"])


def test_schemas(app):
    asked = {key: value for key, value in TALK.items() if key not in ("logit_bias", "ignore_eos")} | {"max_tokens": 200}
    schema = {"type": "object", "properties": {"go": {"type": "boolean"}}, "required": ["go"],
              "additionalProperties": False}  # fmt: skip
    by_schema = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
    for body in (asked, {**asked, "stream": True}):
        reply = ask(app, CHAT, {**body, "response_format": by_schema})
        [found] = (joined(reply) if "stream" in body else whole(reply)).values()
        assert set(json.loads(found["text"])) == {"go"}
        assert found["finish_reason"] == "stop"
    text = whole(ask(app, CHAT, {**asked, "response_format": {"type": "json_object"}, "max_tokens": 8}))[0]["text"]
    assert text.startswith("{")
    assert ask(app, CHAT, {**asked, "response_format": {"type": "text"}}).status == 200
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nosuch"}}}
    refused = ask(app, CHAT, {**asked, "response_format": wrong})
    assert (refused.status, refused.json["error"]["param"]) == (400, "response_format")
    assert refused.json["error"]["message"].startswith("response_format: ")
    wrong["json_schema"]["schema"] = {"oneOf": [{"type": "string"}, {"type": "string", "minLength": 2}]}
    error = ask(app, CHAT, {**asked, "response_format": wrong}).json["error"]
    assert "write anyOf" in error["message"]
    assert "coerce" not in error["message"]


def test_without_max_tokens_the_default_or_what_the_window_leaves(new, llm, monkeypatch):
    _, app = new(default_max_tokens=7)
    body = {**SHORT, "max_tokens": None}
    assert ask(app, COMPLETIONS, body).json["usage"]["completion_tokens"] == 7
    monkeypatch.setattr(llm.decoder, "shape", replace(llm.decoder.shape, max_positions=20))
    several = ask(app, COMPLETIONS, {**body, "prompt": [[40] * 18, [40] * 20, [40] * 3]})
    assert several.json["usage"]["completion_tokens"] == 3 + 1 + 7
    beyond = {**body, "prompt": [40] * 20, "plan": "streaming(sink=2, recent=9)"}  # reuses positions
    assert ask(app, COMPLETIONS, beyond).json["usage"]["completion_tokens"] == 7


def test_tokens(app, llm):
    ids = llm.tokenizer("héllo")["input_ids"]
    found = ask(app, "/tokenize", {"prompt": "héllo", "add_special_tokens": False}).json
    assert found == {"tokens": ids, "count": len(ids), "max_model_len": 32768}
    assert ask(app, "/detokenize", {"tokens": ids}).json == {"prompt": "héllo"}
    assert ask(app, "/tokenize", {"prompt": ""}).json["tokens"] == []
    assert ask(app, "/detokenize", {"tokens": []}).json == {"prompt": ""}
    talk = TALK["messages"]
    assert ask(app, "/tokenize", {"messages": talk}).json["tokens"] == llm.render(talk)
    info = ask(app, "/tokenizer_info").json
    assert (info["eos_token"], info["bos_token"], info["pad_token"]) == ("<eos>", "<bos>", "<pad>")
    assert info["chat_template"] == llm.tokenizer.chat_template


def test_models_and_health(app):
    [model] = ask(app, "/v1/models").json["data"]
    assert {**model, "created": 0} == {
        "id": "tiny", "object": "model", "created": 0, "owned_by": "winnow", "max_model_len": 32768, "plan": "full",
        "plans": "any",
    }  # fmt: skip
    assert ask(app, "/v1/models/tiny").json == model
    assert ask(app, "/health").json == {"status": "ok"}
    assert ask(app, "/health", method="HEAD").status == 200
    schemas = ask(app, "/openapi.json").json["components"]["schemas"]
    assert {"ChatBody", "CompletionBody"} <= set(schemas)
    assert len(schemas["CompletionBody"]["properties"]["prompt"]["anyOf"]) == 4
