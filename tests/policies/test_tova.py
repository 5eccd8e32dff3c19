"""TOVA against an independent token-by-token implementation."""

import pytest
import torch

from cache_of_scores import cache_of, kept
from covering import covered
from evict_reference import assert_equals_reference, best
from models import small_model
from winnow import LLM, SamplingParams
from winnow.errors import PlanError
from winnow.policies.keep.tova import TOVA

PROMPT = 31


def rule(policy):
    """The weights of the last row, as the mean over all heads."""

    def stays(notes, live):
        score = {p: sum(head.attention[-1].get(p, 0.0) for head in notes.heads) for p in live}
        return best(live, score, policy.budget, 0, notes.window)

    return stays


@covered(
    (
        ("name", "parameters"),
        [
            ("llama", {"chunk": 6}),
            ("llama", {"chunk": None, "local": 0}),  # the authors' form
            ("llama", {"chunk": 5, "positions": "compact", "decode_chunk": 4}),
            ("llama-9-3", {"chunk": 6, "decode_chunk": None}),
            ("mistral", {"budget": 6, "chunk": 5}),  # a window of 8 in every layer
        ],
    ),
    prefill_chunk=[1, 7, 64],
)
def test_equals_the_reference(text, name, parameters, prefill_chunk):
    policy = TOVA(**{"budget": 9, "local": 4, **parameters})
    llm = LLM(small_model(name), prefill_chunk=prefill_chunk)
    sets = assert_equals_reference(llm, text, policy, rule(policy), PROMPT, policy.local)
    after = [[str(head) for head in layer] for layer in sets[PROMPT - 1]]
    assert len({layer[0] for layer in after}) > 1  # each layer its own, all heads of it the same
    assert all(len(set(layer)) == 1 for layer in after)


def test_votes_are_the_mean_over_all_heads():
    weights = torch.tensor([[[[0.5, 0.5], [1.0, 0.0]], [[0.0, 1.0], [0.5, 0.5]]]])  # [1, 2, 2, 2]
    assert TOVA().score.votes(weights).tolist() == [[0.5, 0.5]]
    assert TOVA().score.votes(weights[:, :1]).tolist() == [[0.75, 0.25]]


def test_the_least_attended_go_and_votes_are_forgotten():
    votes = torch.tensor([[0.3, 0.1, 0.05, 0.2, 0.15, 0.2]]).expand(2, -1)
    cache = cache_of(votes)
    assert kept(TOVA(budget=4, local=0), cache) == [[0, 3, 4, 5]] * 2
    assert not cache.live_scores().any()


def test_one_comes_and_one_goes(text):
    llm = LLM(small_model())
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    [out] = llm.generate([text], params, plan="tova(budget=9, chunk=7, local=0)")
    shape = llm.decoder.shape
    unit = shape.layers * shape.kv_heads * shape.unit_bytes
    assert out.stats.cache_bytes == 9 * unit
    assert out.stats.peak_cache_bytes == (9 + 7) * unit
    assert out.stats.units_read == 5 * 10 * shape.layers * shape.kv_heads


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(PlanError, match="budget=0 must be at least 1"):
        TOVA(budget=0)
