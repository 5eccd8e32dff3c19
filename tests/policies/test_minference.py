"""MInference against a restatement with loops over heads, columns, diagonals and blocks."""

import pytest
import torch

from covering import covered
from prefill_reference import PROMPT, assert_equals_reference
from winnow import Plan
from winnow.errors import PlanError
from winnow.policies.prefill.base import TOGETHER, Piece
from winnow.policies.prefill.minference import LAST, MInference


def vertical_slash(policy, look, head):
    """[blocks of rows][units that are read]."""
    last = min(LAST, look.rows)
    attention, own = look.attention(last)[head], look.units - last
    columns, diagonals = [0.0] * look.units, [0.0] * look.units
    for i in range(last):
        for j in range(own + i + 1):
            columns[j] += float(attention[i, j])
            diagonals[own + i - j] += float(attention[i, j])

    def chosen(sums, forced, count):
        first = list(range(min(forced, look.units)))
        others = sorted(range(len(first), look.units), key=lambda n: -sums[n])
        return [*first, *others][:count]

    kept = chosen(columns, policy.sink, policy.vertical), chosen(diagonals, policy.near, policy.slash)
    for start in range(look.past, look.units, policy.block):
        read = set(kept[0])
        for far in kept[1]:
            if far < start + policy.block:
                end = max(start + policy.block - far, policy.block)
                read |= set(range(end - policy.block, end))
        yield read


def a_shape(policy, look, head):
    for start in range(look.past, look.units, policy.block):
        rows = range(start, min(start + policy.block, look.units))
        yield {j for i in rows for j in range(i + 1) if j < policy.vertical or i - j < policy.slash}


def block_sparse(policy, look, head):
    block = policy.block
    means = [look.k[head, at : at + block].mean(0) for at in range(0, look.units, block)]
    for start in range(look.past, look.units, block):
        query = look.q[head, start - look.past : start - look.past + block].mean(0)
        own = start // block
        scores = [float(query @ key) for key in means[: own + 1]]
        best = sorted(range(own + 1), key=lambda c: -scores[c])[: policy.blocks]
        yield {unit for c in best for unit in range(c * block, (c + 1) * block)}


def rule(policy):
    pattern = {"vertical_slash": vertical_slash, "a_shape": a_shape, "block_sparse": block_sparse}[policy.pattern]

    def reads(look):
        seen = torch.zeros(len(look.q), look.rows, look.units, dtype=torch.bool)
        for head in range(len(look.q)):
            for at, read in enumerate(pattern(policy, look, head)):
                units = torch.tensor([unit in read for unit in range(look.units)])
                seen[head, at * policy.block : (at + 1) * policy.block] = units
        return seen

    return reads


NAMES = ["llama", "gemma2", "gpt_oss", "llama-9-3", "llama-wide"]


@covered(
    (("vertical", "slash", "sink", "near"), [(4, 3, 1, 1), (3, 5, 4, 2), (6, 1, 0, 0), (1, 6, 0, 1)]),
    (("block", "chunk"), [(2, 8), (3, 12), (4, 64), (8, 8)]),
    name=NAMES,
    step=[1, 10, 64],
)
def test_columns_and_diagonals_equal_the_reference(name, vertical, slash, sink, near, block, chunk, step, text):
    policy = MInference(vertical=vertical, slash=slash, sink=sink, near=near, block=block, chunk=chunk)
    stats = assert_equals_reference(name, policy, rule(policy), text, step)
    assert stats.pairs_read < stats.pairs_full


@covered(
    (("vertical", "slash"), [(4, 3), (1, 9), (9, 1)]), (("block", "chunk"), [(2, 8), (3, 12), (4, 64)]),
    name=NAMES,
)  # fmt: skip
def test_an_a_shape_equals_the_reference_and_a_closed_formula(name, vertical, slash, block, chunk, text):
    policy = MInference(pattern="a_shape", vertical=vertical, slash=slash, block=block, chunk=chunk)
    stats = assert_equals_reference(name, policy, rule(policy), text)
    pairs = 0
    for row in range(PROMPT):
        recent = row + 1 - max(0, row // block * block - slash + 1)  # of its block's first row, and its own block's
        pairs += recent + min(vertical, row + 1 - recent)
    heads = stats.pairs_full // (PROMPT * (PROMPT + 1) // 2)
    assert stats.pairs_read == heads * pairs < stats.pairs_full


@covered((("blocks", "block", "chunk"), [(1, 2, 8), (3, 3, 12), (2, 4, 64), (5, 2, 8)]), name=NAMES)
def test_best_blocks_equal_the_reference(name, blocks, block, chunk, text):
    policy = MInference(pattern="block_sparse", blocks=blocks, block=block, chunk=chunk)
    stats = assert_equals_reference(name, policy, rule(policy), text)
    assert stats.pairs_read < stats.pairs_full


def test_a_chunk_is_a_whole_number_of_blocks():
    with pytest.raises(PlanError, match="use chunk=1024"):
        Plan.parse("minference(chunk=1000)")


def test_sizes_of_another_pattern_are_refused():
    with pytest.raises(PlanError, match="needs pattern='block_sparse'"):
        Plan.parse("minference(blocks=3)")
    with pytest.raises(PlanError, match="needs pattern='vertical_slash'"):
        Plan.parse("minference(pattern='a_shape', sink=3)")


@pytest.mark.parametrize("softcap", [None, 0.5])
@pytest.mark.parametrize("count", [1, TOGETHER, 2 * TOGETHER + 3])
def test_attention_of_last_rows_is_summed_by_unit_and_by_distance(count, softcap):
    drawn = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(4, 80, 16, generator=drawn), torch.randn(2, 90, 16, generator=drawn)
    logits = queries[:, -count:] @ keys.repeat_interleave(2, 0).mT / 4
    logits = logits if softcap is None else softcap * (logits / softcap).tanh()
    apart = torch.arange(90 - count, 90)[:, None] - torch.arange(90)
    weights = logits.masked_fill(apart < 0, float("-inf")).softmax(-1)
    by_distance = torch.zeros(4, 90)
    for row in range(count):
        seen = apart[row] >= 0
        by_distance[:, apart[row, seen]] += weights[:, row, seen]
    found = Piece(0, queries, keys, 0.25, softcap).attention_of_last(count)
    torch.testing.assert_close(found[0], weights.sum(1))
    torch.testing.assert_close(found[1], by_distance)
