"""Attention over a union from its parts."""

import pytest
import torch

from winnow.kernels.merge import merge


@pytest.mark.parametrize("cuts", [[10], [3, 7], [1, 0, 9], [2, 3, 5]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_of_a_softmax(cuts, dtype):
    logits, values = torch.randn(4, 2, 10) * 5, torch.randn(4, 2, 10, 8)
    whole = (logits.softmax(-1)[..., None] * values).sum(-2)
    parts = []
    for some, v in zip(logits.split(cuts, -1), values.split(cuts, -2), strict=True):
        parts.append(((some.softmax(-1)[..., None] * v).sum(-2).to(dtype), some.logsumexp(-1)))
    got = merge(parts)
    assert got.dtype is dtype
    torch.testing.assert_close(got.float(), whole, rtol=0, atol=1e-6 if dtype is torch.float32 else 2e-2)


def test_nothing_seen_anywhere_is_zero():
    nothing = (torch.zeros(1, 2, 8), torch.full((1, 2), float("-inf")))
    assert merge([nothing, nothing]).eq(0).all()
