"""Turns of a chat, and questions over one text: each computes only what is new, and is answered as if it were alone."""

import asyncio
from itertools import pairwise

import pytest

from http_calls import ask, call, quiet
from winnow.engine.engine import Engine

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BEGINNING = "A ferry leaves at nine, and comes back at noon. " * 4
STREAMING, SNAPKV = "streaming(sink=2, recent=90)", "snapkv(budget=40, chunk=24, window=8, local=9)"
BOUNDED = (STREAMING, SNAPKV, "speed(cutoff=1, decode_from='last:3')")


def asked(app, talk, **others):
    reply = ask(app, CHAT, {"messages": talk, "max_tokens": 7, "temperature": 0, "ignore_eos": True, "logprobs": True}
                | others)  # fmt: skip
    assert reply.status == 200, reply.json
    return reply.json


def taken(answer):
    """Prompt tokens that were not computed."""
    found = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert found == answer["usage"]["winnow"]["cached_tokens"]
    return found


def same(answer, other):
    """Whether two answers are equal, and their probabilities but for rounding."""
    (mine, its) = (each["choices"][0] for each in (answer, other))
    assert mine["message"] == its["message"]
    for got, expected in zip(mine["logprobs"]["content"], its["logprobs"]["content"], strict=True):
        assert got["logprob"] == pytest.approx(expected["logprob"], abs=1e-4)


def turns(app, other, llm, count=5, **settings):
    """A chat on both; returns for every turn its prompt, and how many tokens of it were taken over."""
    talk, found = [{"role": "user", "content": BEGINNING}], []
    for turn in range(count):
        answer = asked(app, talk, **settings)
        same(answer, asked(other, talk, **settings))
        found.append((llm.render(talk), taken(answer)))
        talk += [answer["choices"][0]["message"] | {"refusal": None}, {"role": "user", "content": f"And {turn}?"}]
    return found


def shared(first, second):
    return next(
        (at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def test_every_turn_goes_on_from_the_one_before(new, llm, monkeypatch):
    service, app = new(max_step_tokens=16)
    _, other = new(retain_mib=0.0)
    most = []
    step = Engine.step

    def watched(self):
        outputs = step(self)
        if self is service.engine:
            most.append(self.retained_bytes)
        return outputs

    monkeypatch.setattr(Engine, "step", watched)
    found = turns(app, other, llm)
    assert found[0][1] == 0
    for (before, _), (prompt, tokens) in pairwise(found):
        assert len(before) <= tokens <= len(before) + 6  # an answer's text may be other tokens than it was made of
        assert tokens >= shared(before, prompt)
    per_token = 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, channels, bytes
    assert max(most) <= (len(found[-1][0]) + 7) * per_token + 8 * 64 * per_token  # one conversation, not five
    assert quiet(service)


@pytest.mark.parametrize("plan", BOUNDED)
def test_under_a_plan_what_may_be_gone_on_from_is(new, llm, plan):
    _, app = new(max_step_tokens=16)
    _, other = new(retain_mib=0.0)
    found = turns(app, other, llm, count=3, plan=plan)
    assert found[0][1] == 0
    for (before, _), (_, tokens) in pairwise(found):
        assert len(before) - 40 < tokens <= len(before) + 6


def test_the_same_prompt_again_and_another_question_over_it(new, llm):
    _, app = new()
    talk = [{"role": "user", "content": BEGINNING + "When?"}]
    first = asked(app, talk)
    again = asked(app, talk)
    same(first, again)
    prompt = llm.render(talk)
    assert taken(again) == len(prompt) - 1
    assert again["usage"]["winnow"]["rows_computed"] == first["usage"]["winnow"]["rows_computed"] - 2 * (
        len(prompt) - 1
    )
    other = [{"role": "user", "content": BEGINNING + "Where?"}]
    assert taken(asked(app, other)) == shared(prompt, llm.render(other))


def test_salts_and_plans_are_apart(new):
    _, app = new()
    talk = [{"role": "user", "content": BEGINNING}]
    asked(app, talk, cache_salt="mine")
    for others in ({}, {"cache_salt": "yours"}, {"cache_salt": "mine", "plan": STREAMING}):
        assert taken(asked(app, talk, **others)) == 0
    assert taken(asked(app, talk, cache_salt="mine")) > 0
    for salt in ("", "x" * 1025, 5):
        reply = ask(app, CHAT, {"messages": talk, "cache_salt": salt})
        assert (reply.status, reply.json["error"]["param"]) == (400, "cache_salt")


def test_probabilities_of_a_prompt_are_computed(new):
    _, app = new()
    body = {"prompt": BEGINNING, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
    first, again = (ask(app, COMPLETIONS, body).json for _ in range(2))
    assert first["choices"] == again["choices"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert ask(app, COMPLETIONS, {**body, "echo": False}).json["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_two_go_on_from_the_same_at_once_while_it_is_given_back(new):
    """And several samples of one of them."""
    service, app = new(max_sequences=8)
    _, other = new(retain_mib=0.0)
    asked(app, [{"role": "user", "content": BEGINNING}])
    talks = [[{"role": "user", "content": BEGINNING + more}] for more in ("One.", "Two!", "One.")]

    async def together():
        body = {"max_tokens": 40, "temperature": 0, "ignore_eos": True, "logprobs": True}
        tasks = [asyncio.create_task(call(app, "POST", CHAT, {**body, "messages": talk})) for talk in talks]
        while service.engine.running < 3:
            await asyncio.sleep(0.001)
        with service.engine._stepping:
            assert len(service.engine._retained) > 0
            service.engine._retained.clear()
        return [reply.json for reply in await asyncio.gather(*tasks)]

    for talk, answer in zip(talks, asyncio.run(together()), strict=True):
        assert taken(answer) > len(BEGINNING)
        same(answer, asked(other, talk, max_tokens=40))
    ask(app, COMPLETIONS, {"prompt": BEGINNING, "max_tokens": 1})
    body = {"prompt": BEGINNING, "max_tokens": 6, "n": 3, "temperature": 1.0, "seed": 5, "ignore_eos": True}
    got, expected = ask(app, COMPLETIONS, body).json, ask(other, COMPLETIONS, body).json
    assert got["choices"] == expected["choices"]
    assert got["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert got["usage"]["winnow"]["cached_tokens"] == 3 * got["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_metrics_count_what_was_looked_for_and_found(new):
    service, app = new()
    talk = [{"role": "user", "content": BEGINNING}]
    first, second = asked(app, talk), asked(app, talk)
    shown = ask(app, "/metrics").body.decode()
    assert f"winnow:prefix_cache_queries_total {2.0 * first['usage']['prompt_tokens']}" in shown
    assert f"winnow:prefix_cache_hits_total {float(taken(second))}" in shown
    assert f"winnow:cache_retained_bytes {float(service.engine.retained_bytes)}" in shown
    assert service.engine.retained_bytes > 0
