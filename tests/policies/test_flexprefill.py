"""FlexPrefill against a restatement with loops over heads, blocks, columns and diagonals."""

import math

import pytest
import torch

from covering import covered
from prefill_reference import assert_equals_reference
from winnow import Plan
from winnow.errors import PlanError
from winnow.policies.prefill.flexprefill import FlexPrefill


def covering_count(shares, gamma, block):
    """Blocks for as many of the largest shares as sum up to more than gamma."""
    total, count = 0.0, 0
    for share in sorted(shares, reverse=True):
        total += share
        count += total <= gamma
    return (count + 1) // block + 1


def distance(p, q):
    both = 0.0
    for a, b in zip(p, q, strict=True):
        both += a * math.log(2 * a / (a + b)) + b * math.log(2 * b / (a + b))
    return math.sqrt(max(0.0, both / 2))


def rule(policy, ways):
    """ways: is told in which of the two ways each head was served."""
    block, least = policy.block, math.ceil(policy.min_budget / policy.block)

    def means(x):
        return [x[start : start + block].mean(0) for start in range(0, len(x), block)]

    def reads(look):
        seen = torch.zeros(len(look.q), look.rows, look.units, dtype=torch.bool)
        if look.units <= max(2, least) * block:
            return ~seen
        blocks, past = math.ceil(look.units / block), look.past // block
        last = min(block, look.rows)
        attention = look.attention(last)
        for head, q in enumerate(look.q):
            columns, diagonals = [0.0] * look.units, [0.0] * look.units
            for i in range(last):
                for j in range(look.units - last + i + 1):
                    share = float(attention[head, i, j]) / last
                    columns[j] += share
                    diagonals[look.units - last + i - j] += share
            by_column, by_distance = [0.0] * blocks, [0.0] * blocks
            for j, share in enumerate(columns):
                by_column[j // block] += share
            for far, share in enumerate(diagonals):
                # As the authors do: distances are counted from the farthest one.
                by_distance[blocks - 1 - (look.units - 1 - far) // block] += share
            keys = means(look.k[head])
            guess = torch.stack([q[-last:].mean(0) @ key for key in keys]) * look.scale
            pools = distance(guess.softmax(-1).tolist(), by_column) < policy.tau
            ways.add(pools)
            counts = [least, least]
            if not pools:
                counts = [max(least, covering_count(each, policy.gamma, block)) for each in (columns, diagonals)]
            best_columns = sorted(range(1, blocks), key=lambda c: -by_column[c])[: max(0, counts[0] - 1)]
            best_far = sorted(range(1, blocks), key=lambda c: -by_distance[c])[: max(0, counts[1] - 1)]
            columns_read, far_read = {0, *best_columns}, {0, *best_far}
            pairs = {(own, c) for own in range(past, blocks) for c in range(own + 1)
                     if c in columns_read or own - c in far_read}  # fmt: skip
            if pools:
                pairs |= best_pairs(means(q), keys, past, policy.gamma, look.scale)
            for own, c in pairs:
                rows = slice(own * block - look.past, (own + 1) * block - look.past)
                seen[head, rows, c * block : (c + 1) * block] = True
        return seen

    return reads


def best_pairs(queries, keys, past, gamma, scale):
    """Of all blocks of rows with one that is not behind them, the best, up to gamma for each."""
    weights = {}
    for own, query in enumerate(queries, past):
        row = (torch.stack([query @ key for key in keys[: own + 1]]) * scale).softmax(-1)
        weights |= {(own, c): float(weight) for c, weight in enumerate(row)}
    chosen, total = set(), 0.0
    for pair in sorted(weights, key=lambda pair: -weights[pair]):
        total += weights[pair]
        if total <= gamma * len(queries):
            chosen.add(pair)
    return chosen


@covered(
    (("gamma", "min_budget", "block", "chunk"), [(0.4, 4, 2, 8), (0.6, 3, 3, 12), (0.3, 2, 2, 64), (0.45, 0, 4, 8)]),
    tau=[0.0, 0.1, 0.3, 9.0],
    name=["llama", "gemma2", "gpt_oss", "llama-9-3", "llama-wide"],
    step=[1, 10, 64],
)
def test_equals_the_reference(name, gamma, min_budget, block, chunk, tau, step, text):
    policy = FlexPrefill(gamma=gamma, tau=tau, min_budget=min_budget, block=block, chunk=chunk)
    ways = set()
    stats = assert_equals_reference(name, policy, rule(policy, ways), text, step)
    assert stats.pairs_read < stats.pairs_full
    assert ways == {0.0: {False}, 9.0: {True}}.get(tau, ways)


def test_both_ways_are_taken(text):
    policy, ways = FlexPrefill(gamma=0.4, tau=0.1, min_budget=4, block=2, chunk=8), set()
    assert_equals_reference("llama", policy, rule(policy, ways), text)
    assert ways == {False, True}


def test_a_chunk_is_a_whole_number_of_blocks():
    with pytest.raises(PlanError, match="use chunk=1024"):
        Plan.parse("flexprefill(chunk=1000)")
