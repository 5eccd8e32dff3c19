"""Scissorhands against an independent token-by-token implementation, and its count on hand-made weights."""

import pytest
import torch

from cache_of_scores import cache_of, kept
from covering import covered
from evict_reference import assert_equals_reference, best
from models import small_model
from winnow import LLM, SamplingParams
from winnow.errors import PlanError
from winnow.policies.keep.scissorhands import Scissorhands

PROMPT = 31


def rule(policy):
    """How often a unit got less than an even share from the last rows since the boundary before."""

    def stays(notes, live):
        rows = notes.attention[notes.boundaries[-1] :][-policy.window :]
        score = {p: -sum(p in row and row[p] < 1 / len(row) for row in rows) for p in live}
        return best(live, score, policy.budget, policy.recent, notes.window)

    return stays


@covered(
    (
        ("name", "parameters"),
        [
            ("llama", {"chunk": 6, "window": 5}),
            ("llama", {"chunk": 6, "window": 400, "recent": 0, "positions": "compact"}),
            ("llama", {"chunk": None, "window": 12, "local": 0}),
            ("llama", {"chunk": 5, "window": 3, "recent": 6, "decode_chunk": 4}),
            ("mistral", {"budget": 6, "chunk": 5, "window": 4}),  # a window of 8 in every layer
        ],
    ),
    prefill_chunk=[1, 7, 64],
)
def test_equals_the_reference(text, name, parameters, prefill_chunk):
    policy = Scissorhands(**{"budget": 9, "local": 4, "recent": 2, **parameters})
    llm = LLM(small_model(name), prefill_chunk=prefill_chunk)
    sets = assert_equals_reference(llm, text, policy, rule(policy), PROMPT, policy.local)
    assert len({str(head) for layer in sets[PROMPT - 1] for head in layer}) > 1  # each head its own


def test_a_row_passes_over_what_gets_less_than_an_even_share():
    weights = torch.tensor(
        [
            [[[0.5, 0.4, 0.1, 0.0], [0.5, 0.2, 0.3, 0.0]]],  # means 0.5, 0.3, 0.2 of three units
            [[[0.6, 0.0, 0.2, 0.2], [0.6, 0.0, 0.2, 0.2]]],  # of four; the second unit's weight has rounded to 0
            [[[0.25, 0.25, 0.25, 0.25], [0.25, 0.25, 0.25, 0.25]]],  # an even share is not less than one
        ]
    )
    assert Scissorhands().score.votes(weights).tolist() == [[0.0, -2.0, -2.0, -1.0]]


def test_the_most_passed_over_go_and_of_equals_the_older():
    counts = -torch.tensor([[3.0, 0, 2, 2, 2, 9, 5, 5], [7, 7, 7, 7, 7, 7, 7, 7]])
    policy = Scissorhands(budget=5, recent=2, local=0)
    assert kept(policy, cache_of(counts)) == [[1, 3, 4, 6, 7], [3, 4, 5, 6, 7]]


def test_counts_are_forgotten_after_an_eviction():
    cache = cache_of(-torch.ones(2, 12))
    kept(Scissorhands(budget=5, recent=2, local=0), cache)
    assert not cache.live_scores().any()


def test_bytes_in_closed_form(text):
    llm = LLM(small_model())
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    [out] = llm.generate([text], params, plan="scissorhands(budget=9, chunk=7, recent=2, local=4)")
    shape = llm.decoder.shape
    unit = shape.layers * shape.kv_heads * shape.unit_bytes
    assert out.stats.cache_bytes == (9 + 4 + 5) * unit
    assert out.stats.peak_cache_bytes == max(9 + 7, 9 + 4 + 5) * unit


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"budget": 10}, "recent=10 must be below budget=10"),
        ({"recent": -1}, "recent=-1 must be at least 0"),
        ({"window": 0}, "window=0 must be at least 1"),
        ({"budget": 20, "local": 21}, "local=21 adds to it"),
    ],
)
def test_bad_parameters_are_refused(parameters, message):
    with pytest.raises(PlanError, match=message):
        Scissorhands(**parameters)
