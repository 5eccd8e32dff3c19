"""TOVA: one vote, for all heads; the whole is compared with a restatement in `test_scores`."""

import pytest
import torch

from cache_of_scores import cache_of, kept
from models import small_model
from winnow import LLM, SamplingParams
from winnow.errors import PlanError
from winnow.policies.keep.tova import TOVA


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
