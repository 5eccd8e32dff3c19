"""A watched generation is an ordinary one, and what it counts is what the caches come to hold."""

import random

import pytest
from benchmarks.watch import generate_watched

from driving import decode, prefill
from models import small_model
from winnow import LLM, Plan, SamplingParams
from winnow.errors import CapacityError, PlanError
from winnow.runtime.sequence import new_sequence

PROMPT, NEW = 40, 10
LAZY = "lazyllm(layers=[1, 3], keep=[0.5, 0.4])"
GREEDY = SamplingParams(max_tokens=NEW, ignore_eos=True)
TIMES = {"queue_s", "ttft_s", "total_s", "tpot_s"}


@pytest.fixture(scope="module")
def llm():
    return LLM(small_model("llama"), prefill_chunk=7)


@pytest.fixture(scope="module")
def ids():
    source = random.Random(3)
    return [source.randrange(3, 97) for _ in range(PROMPT)]


@pytest.mark.parametrize("plan", ["full", LAZY, "random_drop(keep=0.5)", "streaming(sink=2, recent=8)"])
def test_is_the_same_generation(llm, ids, plan):
    watched = generate_watched(llm, ids, GREEDY, Plan.parse(plan)).completion
    [plain] = llm.generate([ids], GREEDY, plan=plan)
    assert (watched.token_ids, watched.finish_reason) == (plain.token_ids, plain.finish_reason)
    counts, expected = watched.stats.to_dict(), plain.stats.to_dict()
    assert {key: counts[key] for key in counts.keys() - TIMES} == {key: expected[key] for key in counts.keys() - TIMES}
    assert 0 < watched.stats.ttft_s <= watched.stats.total_s


def test_counts_what_the_caches_hold_after_every_step(llm, ids):
    done, plan = generate_watched(llm, ids, GREEDY, Plan.parse(LAZY)), Plan.parse(LAZY)
    state = new_sequence(llm.decoder, plan, PROMPT, PROMPT + NEW, llm.prefill_chunk)
    prefill(llm.decoder, state, ids, llm.prefill_chunk)
    held = [[int((cache.live_positions() < PROMPT).sum()) for cache in state.caches]]
    for token in done.completion.token_ids[:-1]:
        decode(llm.decoder, [(state, token)])
        held.append([int((cache.live_positions() < PROMPT).sum()) for cache in state.caches])
    assert done.computed == held
    assert done.computed[0] == plan.compute.layer_tokens(llm.decoder.shape, PROMPT).rows
    assert done.computed[-1][3] > done.computed[0][3]  # something was revived


def test_counts_tokens_that_have_been_evicted_since_and_not_those_never_seen(llm, ids):
    window = generate_watched(llm, ids, GREEDY, Plan.parse("streaming(sink=2, recent=8)"))
    assert window.computed == [[PROMPT] * 4] * NEW
    dropped = generate_watched(llm, ids, GREEDY, Plan.parse("random_drop(keep=0.5)"))
    assert dropped.computed == [[PROMPT // 2] * 4] * NEW


def test_an_answer_of_one_token_is_watched_too(llm, ids):
    done = generate_watched(llm, ids, SamplingParams(max_tokens=1), Plan.parse(LAZY))
    assert done.computed == [[40, 21, 21, 9]]  # ceil(0.5 * 39) + 1, ceil(0.4 * 20) + 1


def test_refuses_what_generate_refuses(llm, ids):
    with pytest.raises(CapacityError):
        generate_watched(llm, ids * 20, GREEDY, Plan())
    with pytest.raises(PlanError):
        generate_watched(llm, ids, GREEDY, Plan.parse("lazyllm(layers=[9], keep=0.5)"))
