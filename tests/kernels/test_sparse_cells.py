"""Attention over cells: every kernel against the definition, and what is counted against the masks."""

import pytest
import torch

from covering import covered
from winnow.kernels.sparse import Cells, attend_cells, attend_masked
from winnow.kernels.sparse.blocks import attend_blocks

KV_HEADS = 2


@pytest.fixture(params=["cpu", "blocks"])
def kernel(request):
    if request.param == "blocks":
        return attend_blocks
    pytest.importorskip("numba")
    from winnow.kernels.sparse.cpu import attend_cells_cpu

    return attend_cells_cpu


def made(rows, past, block, width, group=3, head_dim=64, dtype=torch.float32, share=0.4):
    """q, k, v and cells drawn at random; k and v are views into slabs that are full of NaN elsewhere."""
    source = torch.Generator().manual_seed(rows + past)
    units, heads = past + rows, KV_HEADS * group
    slabs = torch.full((2, KV_HEADS, units + 70, head_dim), float("nan"), dtype=dtype)
    slabs[:, :, 3 : units + 3] = torch.randn(2, KV_HEADS, units, head_dim, generator=source).to(dtype)
    k, v = slabs[:, :, 3 : units + 3]
    q = torch.randn(rows, heads, head_dim, generator=source).to(dtype)
    front = -past % width
    shape = (heads, -(-rows // block), -(-(units + front) // width))
    return q, k, v, Cells(torch.rand(shape, generator=source) < share, block, width, front)


def whole_mask(cells, rows, units):
    """[q_heads, rows, units] bool, unit by unit."""
    mask = torch.zeros(len(cells.seen), rows, units, dtype=torch.bool)
    for head in range(len(cells.seen)):
        for row in range(rows):
            for unit in range(units - rows + row + 1):
                cell = (unit + cells.front) // cells.width
                mask[head, row, unit] = cells.seen[head, row // cells.rows, cell]
    return mask


SHAPES = [(1, 0, 8, 8), (37, 0, 16, 16), (40, 90, 16, 1), (130, 300, 64, 64), (70, 131, 128, 128), (96, 57, 32, 4)]


@covered(
    (("rows", "past", "block", "width"), SHAPES),
    dtype=[torch.float32, torch.bfloat16],
    options=[{}, {"softcap": 5.0}, {"sinks": True}, {"softcap": 4.0, "sinks": True}],
    head_dim=[32, 64, 128],
)
def test_equals_the_definition(kernel, rows, past, block, width, dtype, options, head_dim):
    q, k, v, cells = made(rows, past, block, width, head_dim=head_dim, dtype=dtype)
    given = {"scale": 0.2, "softcap": options.get("softcap"), "sinks": None}
    if options.get("sinks"):
        given["sinks"] = torch.linspace(-2.0, 6.0, q.shape[1])
    mask = whole_mask(cells, rows, past + rows)
    expected = attend_masked(q.float(), k.float(), v.float(), mask, **given)
    got = kernel(q, k, v, cells, **given)
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(got.float(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("rows", "past", "block", "width"), SHAPES)
def test_pairs_are_those_of_the_mask(rows, past, block, width):
    *_, cells = made(rows, past, block, width)
    mask = whole_mask(cells, rows, past + rows)
    assert cells.pairs(rows, past + rows) == int(mask.sum())
    for block in range(cells.seen.shape[1]):
        first, last = cells.bounds(block, rows)
        assert (cells.mask(block, rows, past + rows) == mask[:, first:last, : past + last]).all()


def test_all_cells_are_full_attention(kernel):
    q, k, v, cells = made(50, 40, 16, 16, share=2.0)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k[None], v[None], torch.ones(50, 90, dtype=torch.bool).tril(40), enable_gqa=True
    )
    got = kernel(q, k, v, cells, scale=64**-0.5, softcap=None, sinks=None)
    torch.testing.assert_close(got, expected[0].transpose(0, 1), rtol=0, atol=1e-5)


def test_what_does_not_fit_is_refused():
    q, k, v, cells = made(50, 40, 16, 16)
    with pytest.raises(ValueError, match="shapes do not fit"):
        attend_cells(q[:30], k, v, cells, scale=1.0)
