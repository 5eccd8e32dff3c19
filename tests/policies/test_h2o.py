"""H2O against an independent token-by-token implementation, and its closed formulas."""

import pytest
import torch

from covering import covered
from evict_reference import assert_equals_reference, best
from models import small_model
from winnow import LLM, SamplingParams
from winnow.errors import PlanError
from winnow.policies.keep.h2o import H2O

PROMPT = 31


def rule(budget, recent):
    """Attention received from all rows so far, as the mean over the group."""

    def stays(notes, live):
        score = {p: sum(row.get(p, 0.0) for row in notes.attention) for p in live}
        return best(live, score, budget, recent, notes.window)

    return stays


@covered(
    (
        ("name", "parameters"),
        [
            ("llama", {"chunk": 6, "recent": 4}),
            ("llama", {"chunk": None, "recent": None, "local": 0}),  # the authors' form
            ("llama", {"chunk": None, "recent": 1, "positions": "compact", "decode_chunk": None}),
            ("llama", {"chunk": 1, "recent": 6, "decode_chunk": 3}),
            ("mistral", {"budget": 6, "chunk": 5, "recent": 2}),  # a window of 8 in every layer
        ],
    ),
    prefill_chunk=[1, 7, 64],
)
def test_equals_the_reference(text, name, parameters, prefill_chunk):
    policy = H2O(**{"budget": 9, "local": 4, **parameters})
    recent = policy.budget // 2 if policy.recent is None else policy.recent
    llm = LLM(small_model(name), prefill_chunk=prefill_chunk)
    sets = assert_equals_reference(llm, text, policy, rule(policy.budget, recent), PROMPT, policy.local)
    assert any(len({str(head) for layer in layers for head in layer}) > 1 for layers in sets)  # each head its own


def test_votes_are_summed_over_rows_and_averaged_over_the_group():
    weights = torch.tensor([[[[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]], [[[0.2, 0.2, 0.6], [0.4, 0.4, 0.2]]]])
    torch.testing.assert_close(H2O().score.votes(weights), torch.tensor([[1.05, 0.55, 0.4]]))


def test_only_rows_before_an_eviction_vote():
    """Voting computes attention weights a second time."""
    assert H2O(chunk=6, local=4).voting_from(0, PROMPT) == 0
    assert H2O(chunk=6, local=4, decode_chunk=None).voting_from(0, PROMPT) is None  # all fit
    once = H2O(budget=9, chunk=6, local=4, decode_chunk=None)
    assert once.voting_from(PROMPT - 5, PROMPT) == 0
    assert once.voting_from(PROMPT - 4, PROMPT) is None
    assert once.voting_from(PROMPT + 3, PROMPT) is None


@pytest.mark.parametrize(("decode_chunk", "left"), [(1, 9), (3, 9 + 2), (None, 9 + 4 + 5)])
def test_bytes_and_units_in_closed_form(text, decode_chunk, left):
    """The cache never holds more than budget + chunk units, and every decode step leaves the budget."""
    llm = LLM(small_model(), prefill_chunk=16)
    policy = f"h2o(budget=9, chunk=6, local=4, decode_chunk={decode_chunk})"
    [out] = llm.generate([text], SamplingParams(max_tokens=6, ignore_eos=True), plan=policy)
    shape = llm.decoder.shape
    heads = shape.layers * shape.kv_heads
    assert out.stats.cache_bytes == left * heads * shape.unit_bytes
    most = max(9 + 6, 9 + 4 + (5 if decode_chunk is None else decode_chunk))
    assert out.stats.peak_cache_bytes == most * heads * shape.unit_bytes
    held, read = 9 + 4, 0
    for step in range(1, 6):
        held += 1
        read += held
        if decode_chunk and step % decode_chunk == 0:
            held = 9
    assert out.stats.units_read == read * heads


def test_the_memory_of_a_long_prompt_is_given_back(text):
    llm = LLM(small_model())
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    [out] = llm.generate([text * 10], params, plan="h2o(budget=16, chunk=None, local=0)")
    shape = llm.decoder.shape
    unit = shape.layers * shape.kv_heads * shape.unit_bytes
    assert out.stats.peak_cache_bytes == len(text) * 10 * unit
    assert out.stats.cache_bytes == 16 * unit
    assert out.stats.allocated_bytes <= 2 * (16 + 1) * unit


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"budget": 0}, "budget=0 must be at least 1"),
        ({"chunk": 0}, "chunk=0 must be at least 1"),
        ({"decode_chunk": 0}, "decode_chunk=0 must be at least 1"),
        ({"recent": -1}, "recent=-1 must be at least 0"),
        ({"budget": 8, "recent": 8}, "recent=8 must be below budget=8"),
        ({"budget": 8, "local": 9}, "local=9 adds to it; use a larger budget or a smaller local"),
        ({"positions": "own"}, "positions='own' must be one of"),
    ],
)
def test_bad_parameters_are_refused(parameters, message):
    with pytest.raises(PlanError, match=message):
        H2O(**parameters)
