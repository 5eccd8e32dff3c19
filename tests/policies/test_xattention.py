"""XAttention against a restatement with loops over blocks, groups and antidiagonals."""

import math

import pytest
import torch

from covering import covered
from prefill_reference import assert_equals_reference
from winnow import Plan
from winnow.errors import PlanError
from winnow.policies.prefill.xattention import XAttention


def rule(policy):
    block, stride = policy.block, policy.stride

    def promised(look, head, a, b):
        """The sum along the antidiagonal of a group of queries and one of keys; what is not there counts 0."""
        total = 0.0
        for i in range(stride):
            row, unit = a * stride + stride - 1 - i - look.past, b * stride + i
            if row < look.rows and unit < look.units:
                total += float(look.q[head, row] @ look.k[head, unit])
        return total * look.scale / stride

    def reads(look):
        seen = torch.zeros(len(look.q), look.rows, look.units, dtype=torch.bool)
        groups = math.ceil(look.units / stride)
        for head in range(len(look.q)):
            for own in range(look.past // block, math.ceil(look.units / block)):
                mass = [0.0] * (own + 1)
                for a in range(own * block // stride, min((own + 1) * block // stride, groups)):
                    weights = torch.tensor([promised(look, head, a, b) for b in range(a + 1)]).softmax(-1)
                    for b, weight in enumerate(weights.tolist()):
                        mass[b * stride // block] += weight
                chosen, rest = {0, own}, list(range(1, own))
                for c in sorted(rest, key=lambda c: -mass[c]):
                    if sum(mass[each] for each in chosen) < policy.threshold * sum(mass):
                        chosen.add(c)
                for c in chosen:
                    rows = slice(max(0, own * block - look.past), max(0, (own + 1) * block - look.past))
                    seen[head, rows, c * block : (c + 1) * block] = True
        return seen

    return reads


@covered(
    (("threshold", "stride", "block"), [(0.5, 2, 4), (0.7, 1, 3), (0.3, 4, 4), (0.9, 2, 2)]),
    name=["llama", "gemma2", "gpt_oss", "llama-9-3", "llama-wide"],
    chunk=[1, 10, 64],
)
def test_equals_the_reference(name, threshold, stride, block, chunk, text):
    policy = XAttention(threshold=threshold, stride=stride, block=block)
    stats = assert_equals_reference(name, policy, rule(policy), text, chunk)
    assert stats.pairs_read < stats.pairs_full


def test_blocks_are_whole_numbers_of_groups():
    with pytest.raises(PlanError, match="use block=96"):
        Plan.parse("xattention(stride=32, block=100)")
