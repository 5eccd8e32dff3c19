"""Requests that are gone on with: what another engine has chosen is fed again, and what follows is what would have."""

import pytest
import torch

from models import small_model
from winnow import LLM, SamplingParams
from winnow.errors import InputError

PROMPT = [(7 * at) % 90 + 3 for at in range(75)]
GREEDY = SamplingParams(max_tokens=24, ignore_eos=True, logprobs=3)
PENALISED = SamplingParams(max_tokens=24, logprobs=3, repetition_penalty=1.3, frequency_penalty=0.4, min_tokens=9)
SEEDED = SamplingParams(max_tokens=24, ignore_eos=True, logprobs=3, temperature=1.2, top_p=0.9, seed=5, n=2)
PLANS = [
    "full",
    "lazyllm",
    "slowfast(budget=16, recent=8, trigger='periodic')",
    "snapkv(budget=24, window=8)",
    "speed(cutoff=2) + h2o(budget=24)",
    "quest(budget=32)",
    "sketch(budget=32, sink=2, recent=5, lag=4)",
    "streaming(sink=2, recent=20) + quantized(bits=8)",
]


@pytest.fixture(scope="module")
def llm():
    """In bfloat16, and to the bit."""
    return LLM(small_model("qwen3", dtype=torch.bfloat16), prefill_chunk=16, deterministic=True)


def ended(llm, request, *others):
    """What samples came to: tokens, reports, and how they ended; with other requests under way."""
    with llm.engine(max_step_tokens=13) as engine:
        number = engine.enqueue(request)
        for other in others:
            engine.enqueue(other)
        outputs = [output for output in engine.run() if output.request_id == number]
    shown = {}
    for output in outputs:
        shown.setdefault(output.sample_index, []).extend(output.token_ids)
    found = [output.completion for output in outputs if output.completion is not None]
    found.sort(key=lambda each: each.sample_index)
    assert [shown[each.sample_index] for each in found] == [each.token_ids for each in found]  # all are shown, again
    assert all(each.error is None for each in found)
    return [(each.token_ids, each.logprobs, each.finish_reason) for each in found]


@pytest.mark.parametrize("params", [GREEDY, PENALISED, SEEDED], ids=["greedy", "penalised", "seeded"])
@pytest.mark.parametrize("plan", PLANS)
def test_what_follows_is_that_of_an_undisturbed_run(llm, plan, params):
    [request] = llm.check([PROMPT], params, plan=plan)
    [other] = llm.check([PROMPT[5:60]], GREEDY, plan="full")
    expected = ended(llm, request)
    for count in (0, 1, 11, len(expected[0][0])):
        given = [tokens[: count - index] for index, (tokens, *_) in enumerate(expected)]
        assert ended(llm, request.going_on(given), other) == expected


def test_tokens_that_are_given_stay_whatever_is_drawn(llm):
    [request] = llm.check([PROMPT], SEEDED)
    given = [[5, 6, 7], []]
    (first, *_), (second, *_) = ended(llm, request.going_on(given))
    assert first[:3] == [5, 6, 7]
    assert second == ended(llm, request)[1][0]


def test_a_grammar_goes_on_where_it_was():
    from tiny import tiny_model
    from tokenizers_for_tests import byte_tokenizer

    pytest.importorskip("llguidance")
    llm = LLM(tiny_model(), tokenizer=byte_tokenizer(), prefill_chunk=16, deterministic=True)
    schema = '{"type": "object", "properties": {"go": {"type": "boolean"}}, "required": ["go"]}'
    [request] = llm.check(["ab"], SamplingParams(max_tokens=60, temperature=1.0, seed=3, json_schema=schema))
    expected = ended(llm, request)
    assert ended(llm, request.going_on([expected[0][0][:7]])) == expected


def test_more_than_was_asked_for_is_refused(llm):
    [request] = llm.check([PROMPT], SEEDED)
    with pytest.raises(InputError, match="given: tokens of 3 samples, and n=2"):
        request.going_on([[1], [1], [1]])
    with pytest.raises(InputError, match="given: 25 tokens of a sample are more than max_tokens=24"):
        request.going_on([[1] * 25])
