"""SnapKV against an independent token-by-token implementation, and its vote on hand-made weights."""

import pytest
import torch

from cache_of_scores import cache_of, kept
from covering import covered
from evict_reference import assert_equals_reference, best
from models import small_model
from winnow import LLM, SamplingParams
from winnow.errors import PlanError
from winnow.policies.keep.snapkv import SnapKV, pooled

PROMPT = 31


def rule(policy):
    """Votes of the last rows since the boundary before, pooled in plain Python."""
    half = policy.kernel // 2

    def stays(notes, live):
        rows = notes.attention[notes.boundaries[-1] :][-policy.window :]
        votes = [sum(row.get(p, 0.0) for row in rows) for p in live[: -policy.window]]
        padded = [0.0] * half + votes + [0.0] * half
        around = [padded[i : i + policy.kernel] for i in range(len(votes))]
        pool = max if policy.pooling == "max" else lambda values: sum(values) / policy.kernel
        score = dict.fromkeys(live, 0.0) | dict(zip(live, map(pool, around), strict=False))
        return best(live, score, policy.budget, policy.window, notes.window)

    return stays


@covered(
    (
        ("name", "parameters"),
        [
            ("llama", {"chunk": 6, "window": 4, "kernel": 3}),
            ("llama", {"chunk": 6, "window": 4, "kernel": 5, "pooling": "max", "positions": "compact"}),
            (
                "llama",
                {"chunk": None, "window": 4, "kernel": 5, "local": 0},
            ),  # the authors' form; a question would vote
            ("llama", {"chunk": None, "window": 3, "kernel": 1, "decode_chunk": 5}),
            (
                "llama",
                {"chunk": 3, "window": 6, "kernel": 3, "pooling": "max", "decode_chunk": 2},
            ),  # votes of 3 and 2 rows
            ("mistral", {"budget": 6, "chunk": 5, "window": 2, "kernel": 1}),  # a window of 8 in every layer
        ],
    ),
    prefill_chunk=[1, 7, 64],
)
def test_equals_the_reference(text, name, parameters, prefill_chunk):
    policy = SnapKV(**{"budget": 9, "local": 4, **parameters})
    llm = LLM(small_model(name), prefill_chunk=prefill_chunk)
    sets = assert_equals_reference(llm, text, policy, rule(policy), PROMPT, policy.local)
    assert len({str(head) for layer in sets[PROMPT - 1] for head in layer}) > 1  # each head its own


def test_a_unit_shares_its_votes_with_its_neighbours():
    """Ten units, the last two the window's own, whose votes spill over to nobody."""
    votes = torch.tensor([[6.0, 0, 0, 0, 0, 3, 3, 0, 100, 100], [0, 0, 5, 0, 0, 0, 0, 4, 0, 0]])
    same = {"budget": 5, "window": 2, "local": 0}
    # Means of three: 2 2 0 0 1 2 2 1, the padding counted; of four equal units, the newest three.
    average = SnapKV(kernel=3, pooling="avg", **same)
    assert kept(average, cache_of(votes)) == [[1, 5, 6, 8, 9], [1, 2, 3, 8, 9]]
    # Maxima of three: 6 6 0 0 3 3 3 3.
    maximum = SnapKV(kernel=3, pooling="max", **same)
    assert kept(maximum, cache_of(votes)) == [[0, 1, 7, 8, 9], [1, 2, 3, 8, 9]]
    alone = SnapKV(kernel=1, **same)
    assert kept(alone, cache_of(votes)) == [[0, 5, 6, 8, 9], [2, 6, 7, 8, 9]]


def test_pooling_at_the_edges():
    votes = torch.tensor([[5.0, 0.0, 10.0, 0.0]])
    assert pooled(votes, 5, "avg").tolist() == [[3.0, 3.0, 3.0, 2.0]]
    assert pooled(votes, 3, "max").tolist() == [[5.0, 10.0, 10.0, 10.0]]
    assert pooled(-votes, 3, "max").tolist() == [[0.0, 0.0, 0.0, 0.0]]
    assert pooled(votes, 1, "avg").tolist() == votes.tolist()
    assert pooled(votes[:, :1], 7, "max").tolist() == [[5.0]]


def test_votes_are_forgotten_after_an_eviction():
    cache = cache_of(torch.arange(20.0).view(2, 10))
    kept(SnapKV(budget=5, window=2, local=0), cache)
    assert cache.length == 5
    assert not cache.live_scores().any()


def test_the_last_rows_before_an_eviction_vote():
    policy = SnapKV(budget=9, chunk=6, window=4, local=4)
    assert policy.voting_from(0, PROMPT) is None  # six tokens fit
    assert policy.voting_from(6, PROMPT) == 12 - 4
    assert policy.voting_from(24, PROMPT) == PROMPT - 4 - 4
    assert policy.voting_from(PROMPT - 4, PROMPT) is None
    assert SnapKV(budget=9, chunk=None, window=4, local=0).voting_from(0, PROMPT) == PROMPT - 4


def test_bytes_in_closed_form_and_memory_given_back(text):
    model = small_model()
    model.config.max_position_embeddings = 4096
    llm = LLM(model)
    prompt = text * 40
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    [out] = llm.generate([prompt], params, plan="snapkv(budget=40, local=8, window=32)")
    shape = llm.decoder.shape
    unit = shape.layers * shape.kv_heads * shape.unit_bytes
    assert out.stats.peak_cache_bytes == (len(prompt) - 8) * unit
    assert out.stats.cache_bytes == (40 + 8 + 2) * unit
    assert out.stats.allocated_bytes < 0.2 * len(prompt) * unit
    assert out.stats.units_read == (49 + 50) * shape.layers * shape.kv_heads


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"budget": 64}, "window=64 must be below budget=64"),
        ({"window": 0}, "window=0 must be at least 1"),
        ({"kernel": 4}, "kernel=4 must be odd and at least 1.*use 5"),
        ({"kernel": -1}, "kernel=-1 must be odd and at least 1.*use 1"),
        ({"kernel": 0}, "use 1"),
        ({"pooling": "sum"}, "pooling='sum' must be one of 'avg', 'max'"),
        ({"budget": 65, "local": 66}, "local=66 adds to it"),
    ],
)
def test_bad_parameters_are_refused(parameters, message):
    with pytest.raises(PlanError, match=message):
        SnapKV(**parameters)


@pytest.mark.parametrize("pooling", ["avg", "max"])
@pytest.mark.parametrize("kernel", [19, 21, 101, 2**31 + 1, 2**62 + 1])
def test_a_kernel_beyond_the_text_sees_all_of_it(pooling, kernel):
    """As zeros around the votes would have it, at no cost."""
    votes = torch.rand(2, 10, generator=torch.Generator().manual_seed(0))
    whole = votes.amax(1, keepdim=True) if pooling == "max" else votes.sum(1, keepdim=True) / kernel
    torch.testing.assert_close(pooled(votes, kernel, pooling), whole.expand(2, 10))
