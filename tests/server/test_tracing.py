"""The trace of an answer, over the server: the page that the inspector makes of it, and what cannot be traced."""

import asyncio
import json
import re

import pytest

from http_calls import ask, call, quiet
from winnow import SamplingParams
from winnow.inspector.trace import Trace

ASKED = {"prompt": "The ferry leaves at nine. " * 3, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
TALK = {"messages": [{"role": "user", "content": ASKED["prompt"]}], "max_tokens": 6, "temperature": 0}
PLAN = "streaming(sink=2, recent=9)"


def trace_of(reply):
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    [data] = re.findall(r'<script type="application/json" id="trace">(.*?)</script>', reply.body.decode(), re.DOTALL)
    return Trace.from_dict(json.loads(data))


@pytest.mark.parametrize("plan", ["full", PLAN, "lazyllm(layers=[1], keep=0.5)"])
def test_it_shows_the_answer_that_the_request_gets(new, llm, plan):
    service, app = new()
    given = ask(app, "/v1/completions", {**ASKED, "plan": plan}).json
    trace = trace_of(ask(app, "/trace/v1/completions", {**ASKED, "plan": plan}))
    assert trace.plan == plan
    assert trace.text == given["choices"][0]["text"]
    cost = given["usage"]["winnow"]
    for name in ("rows_computed", "rows_full", "units_read", "units_full", "total_bytes"):
        assert trace.stats[name] == cost[name], name
    assert len(trace.steps) == 6
    assert quiet(service)


def test_a_stop_string_ends_a_trace_as_it_ends_an_answer(app, llm):
    body = {**ASKED, "max_tokens": 12}
    text = ask(app, "/v1/completions", body).json["choices"][0]["text"]
    for stop in text[3], text[-1]:
        stopped = {**body, "stop": [stop]}
        expected = ask(app, "/v1/completions", stopped).json["choices"][0]["finish_reason"]
        assert trace_of(ask(app, "/trace/v1/completions", stopped)).finish_reason == expected == "stop"


def test_of_a_chat_and_of_a_sample_that_is_drawn(app, llm):
    drawn = {**TALK, "temperature": 1.0, "seed": 5}
    params = SamplingParams(max_tokens=6, temperature=1.0, seed=5)
    [expected] = llm.chat(TALK["messages"], params)
    trace = trace_of(ask(app, "/trace/v1/chat/completions", drawn))
    assert [token.id for token in trace.tokens[trace.prompt :]][:6] == expected.token_ids


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({**ASKED, "n": 2}, "n"),
        ({**ASKED, "prompt": ["a", "b"]}, "n"),
        ({**ASKED, "stream": True}, "stream"),
        ({**ASKED, "max_tokens": 0}, "max_tokens"),
        ({**ASKED, "max_tokens": 0, "echo": True}, "max_tokens"),
        ({**ASKED, "plan": "nosuch"}, "plan"),
    ],
)
def test_what_cannot_be_traced_is_refused(app, body, param):
    reply = ask(app, "/trace/v1/completions", body)
    assert (reply.status, reply.json["error"]["param"]) == (400, param)


def test_a_trace_waits_in_the_queue_as_all_do(new):
    _, app = new(max_queue=1)
    reply = ask(app, "/trace/v1/completions", {**ASKED, "prompt": ["a", "b"]})
    assert (reply.status, reply.json["error"]["param"]) == (400, "prompt")


def test_no_more_is_recorded_than_the_server_says(new):
    _, app = new(max_trace_tokens=5)
    reply = ask(app, "/trace/v1/completions", ASKED)
    assert (reply.status, reply.json["error"]["param"]) == (400, "max_tokens")
    assert "5 new tokens at most here, not 6" in reply.json["error"]["message"]
    assert ask(app, "/trace/v1/completions", {**ASKED, "max_tokens": 5}).status == 200


def test_a_trace_that_does_not_say_its_length_is_as_long_as_the_server_lets_it(new):
    _, app = new(max_trace_tokens=5)
    unsaid = {name: value for name, value in ASKED.items() if name != "max_tokens"}
    assert len(trace_of(ask(app, "/trace/v1/completions", unsaid)).steps) == 5
    unsaid = {name: value for name, value in TALK.items() if name != "max_tokens"}
    assert len(trace_of(ask(app, "/trace/v1/chat/completions", {**unsaid, "ignore_eos": True})).steps) == 5


def test_one_answer_is_traced_at_a_time_and_stays_nowhere(new):
    service, app = new()

    async def together():
        asked = [call(app, "POST", "/trace/v1/completions", ASKED) for _ in range(3)]
        return await asyncio.gather(*asked)

    replies = asyncio.run(together())
    assert sorted(reply.status for reply in replies) == [200, 429, 429]
    assert all(reply.headers["retry-after"] == "1" for reply in replies if reply.status == 429)
    assert service.engine.retained_bytes == 0
    before = ask(app, "/v1/completions", {**ASKED, "plan": PLAN}).json  # is retained, but no trace begins with it
    trace = trace_of(ask(app, "/trace/v1/completions", {**ASKED, "plan": PLAN}))
    assert trace.stats["rows_computed"] == before["usage"]["winnow"]["rows_computed"]
    assert ask(app, "/trace/v1/completions", ASKED).status == 200
