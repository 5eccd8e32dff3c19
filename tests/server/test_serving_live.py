"""OpenAI's own client over a real port, and the command in a process of its own."""

import http.client
import json
import os
import signal
import time
import urllib.request

import openai
import pytest
from pydantic import BaseModel

import forked
from command_line import tiny
from http_calls import quiet
from winnow import SamplingParams
from winnow.errors import InputError
from winnow.server.settings import Settings

__all__ = ["tiny"]
TALK = [{"role": "user", "content": "Where to?"}]


@pytest.fixture
def client(live):
    url, _ = live
    with openai.OpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0, timeout=30) as made:
        yield made


def test_models(client):
    [model] = client.models.list().data
    assert (model.id, model.owned_by) == ("tiny", "winnow")
    assert client.models.retrieve("tiny").id == "tiny"


def test_a_chat_with_a_plan_and_what_it_cost(client, llm):
    plan = "streaming(sink=2, recent=9)"
    asked = {"model": "tiny", "messages": TALK, "max_completion_tokens": 12, "temperature": 0,
             "extra_body": {"plan": plan, "ignore_eos": True, "cache_salt": "first"}}  # fmt: skip
    made = client.chat.completions.create(**asked)
    asked["extra_body"]["cache_salt"] = "second"  # computed anew
    [expected] = llm.chat(TALK, SamplingParams(max_tokens=12, ignore_eos=True), plan=plan)
    assert made.choices[0].message.content == expected.text
    assert made.choices[0].finish_reason == "length"
    cost = made.usage.model_dump()["winnow"]
    assert (cost["plan"], cost["units_read"]) == (plan, expected.stats.units_read)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    said = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(said) == expected.text
    assert chunks[-1].usage.model_dump() == made.usage.model_dump()


def test_completions_of_several_prompts(client, llm):
    made = client.completions.create(
        model="tiny",
        prompt=["ab", "cd"],
        max_tokens=5,
        temperature=1.0,
        seed=3,
        n=2,
        logprobs=2,
        logit_bias={"2": -100},
    )
    params = SamplingParams(max_tokens=5, temperature=1.0, seed=3, n=2, logit_bias={2: -100.0})
    assert [choice.text for choice in made.choices] == [each.text for each in llm.generate(["ab", "cd"], params)]
    assert all(len(choice.logprobs.token_logprobs) == 5 for choice in made.choices)


def test_answers_of_a_type(client):
    class Answer(BaseModel):
        go: bool

    made = client.chat.completions.parse(model="tiny", messages=TALK, response_format=Answer, temperature=0)
    assert isinstance(made.choices[0].message.parsed, Answer)


def test_errors_are_the_clients(client, live):
    def create(**others):
        return client.chat.completions.create(**{"model": "tiny", "messages": TALK, "max_tokens": 4} | others)

    with pytest.raises(openai.BadRequestError) as found:
        create(extra_body={"plan": "nosuch"})
    assert (found.value.param, found.value.type) == ("plan", "invalid_request_error")
    assert "unknown policy 'nosuch'" in found.value.message
    with pytest.raises(openai.BadRequestError, match="tools: not supported"):
        create(tools=[{"type": "function", "function": {"name": "f"}}])
    with pytest.raises(openai.BadRequestError, match="max_cache_bytes=67,108,864"):
        create(max_tokens=32_000, n=100)
    with pytest.raises(openai.NotFoundError) as found:
        create(model="gpt-5")
    assert found.value.code == "model_not_found"
    url, _ = live
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as other,
        pytest.raises(openai.AuthenticationError),
    ):
        other.models.list()


def test_a_stream_that_fails_raises(client, live, monkeypatch):
    _, service = live
    monkeypatch.setattr("winnow.engine.text.TextStream.finish", lambda self: 1 / 0)  # while it ends, of all times
    with pytest.raises(openai.APIError, match="internal error"):
        for _ in client.chat.completions.create(model="tiny", messages=TALK, max_tokens=4, stream=True):
            pass
    monkeypatch.undo()
    assert quiet(service)


def test_a_client_that_leaves_frees_its_bytes(client, live):
    url, service = live
    stream = client.chat.completions.create(
        model="tiny", messages=TALK, max_tokens=20_000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    assert quiet(service)
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    body = json.dumps({"prompt": "a", "max_tokens": 20_000, "ignore_eos": True})
    key = {"Authorization": "Bearer secret", "Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", body, key)
    end = time.monotonic() + 5
    while not service.engine.running and time.monotonic() < end:
        time.sleep(0.005)
    assert service.engine.running
    connection.close()
    assert quiet(service)


def test_the_command(tiny):
    """Loads, says where it is, answers, finishes what is under way after SIGTERM, and ends with 0."""
    process = forked.start(["-m", "winnow", "serve", tiny, "--port", 0, "--plan", "streaming", "--threads", 1])
    said = forked.first_line(process)
    assert " under streaming at http://127.0.0.1:" in said
    url = said.split(" at ")[1].split(";")[0]
    body = json.dumps({"prompt": "ab", "max_tokens": 300, "ignore_eos": True}).encode()
    request = urllib.request.Request(f"{url}/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        assert json.load(reply)["usage"]["winnow"]["plan"] == "streaming"
    connection = http.client.HTTPConnection(url.removeprefix("http://").removesuffix("/v1"), timeout=30)
    connection.request("POST", "/v1/completions", json.dumps({**json.loads(body), "stream": True}),
                       {"Content-Type": "application/json"})  # fmt: skip
    reply = connection.getresponse()
    first = reply.readline()
    os.kill(process.pid, signal.SIGTERM)
    assert first.startswith(b"data: ")
    assert reply.read().endswith(b"data: [DONE]\n\n")
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")


def test_the_command_ends_in_the_middle_of_a_step(tiny):
    """A prompt is read in one step, which nothing stops."""
    process = forked.start(
        ["-m", "winnow", "serve", tiny, "--port", 0, "--threads", 1, "--prefill-chunk", 32768, "--drain-s", 0.1]
    )
    host = forked.first_line(process).split(" at http://")[1].split("/")[0]
    connection = http.client.HTTPConnection(host, timeout=30)
    body = {"prompt": "ab" * 14_000, "max_tokens": 5, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")


def test_settings_that_cannot_be():
    for given, says in [
        ({"port": 70_000}, "port=70000"),
        ({"max_queue": 0}, "max_queue=0"),
        ({"max_cache_mib": 0.0}, "max_cache_mib=0.0"),
        ({"timeout_s": -1.0}, "timeout_s=-1.0"),
        ({"max_step_ms": -1.0}, "max_step_ms=-1.0"),
        ({"max_connections": 0}, "max_connections=0"),
        ({"api_key": ("",)}, "api_key is empty"),
        ({"api_key": ("é",)}, "api_key holds"),
        ({"served_model_name": ""}, "served_model_name is empty"),
    ]:
        with pytest.raises(InputError, match=says):
            Settings(**given)
