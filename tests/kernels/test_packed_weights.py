"""Packed weights: what they stand for, products of few rows, and weights as floats."""

import pickle
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from winnow.kernels import packed
from winnow.kernels.linear import many
from winnow.kernels.packed import KINDS, PackedWeight, expand, linear, pack, quantize, rows_of

SHAPES = [(33, 576), (4, 32), (7, 96), (50, 1536), (192, 1056)]  # no tile divides most of them
ALL = [(kind, minima) for kind in range(len(KINDS)) for minima in (False, True)]


def random_weight(kind: int, minima: bool, rows: int, columns: int, seed: int = 0) -> tuple[PackedWeight, Tensor]:
    """A packed weight, and what it stands for in float64, worked out apart."""
    source = torch.Generator().manual_seed(seed)
    bits, group = KINDS[kind]
    low, high, dtype = (0, 16, torch.uint8) if bits == 4 else (-128, 128, torch.int8)
    codes = torch.randint(low, high, (rows, columns), generator=source).to(dtype)
    scales = (0.01 + 0.1 * torch.rand(rows, columns // group, generator=source)).half().float()
    least = torch.randn(rows, columns // group, generator=source).half().float() if minima else None
    weight = pack(codes, scales, least)
    assert weight is not None
    zero = 8 if bits == 4 and not minima else 0
    values = (codes.double() - zero) * scales.double().repeat_interleave(group, 1)
    return weight.in_tiles(), values if least is None else values + least.double().repeat_interleave(group, 1)


@pytest.mark.parametrize(("kind", "minima"), ALL)
@pytest.mark.parametrize("shape", SHAPES)
def test_floats_are_exact(kind: int, minima: bool, shape: tuple[int, int]) -> None:
    weight, values = random_weight(kind, minima, *shape)
    assert weight.shape == shape
    assert torch.equal(weight.float(), values.float())
    assert torch.equal(expand(weight, torch.float32), values.float())
    assert torch.equal(expand(weight, torch.bfloat16), values.float().bfloat16())
    assert torch.equal(expand(weight[1:3], torch.float32), values[1:3].float())
    ids = torch.tensor([[3, 0], [2, 3]])
    assert torch.equal(rows_of(weight, ids, torch.float32), values.float()[ids])
    flat = torch.tensor([0, 5, shape[1], shape[0] * shape[1] - 1])
    assert torch.equal(weight.at(flat), values.float().flatten()[flat])


def whole_numbers(x: Tensor) -> Tensor:
    """What stands for bfloat16 rows [rows, columns] where they meet codes as two signed bytes each, float64."""
    blocks = x.double().unflatten(1, (-1, 32))
    most = blocks.abs().amax(2, keepdim=True)
    step = 2.0 ** ((most * 32768 / 32639).log2().floor() - 14)
    whole = (blocks / step).round()
    assert ((whole - 127).div(256).ceil() <= 127).all()  # the upper byte
    found = whole * step
    assert ((found - blocks).abs() <= 2.0**-15 * 1.004 * most).all()
    assert ((found == blocks) | (blocks.abs() < 1.004 * most / 128)).all()
    return found.flatten(1)


@pytest.mark.threads
@pytest.mark.parametrize(("kind", "minima"), ALL)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("few", [0, 64])
def test_products_are_those_of_the_floats(kind: int, minima: bool, shape: tuple[int, int], few: int) -> None:
    weight, values = random_weight(kind, minima, *shape)
    source = torch.Generator().manual_seed(1)
    for rows in (1, 2, 3, 4, 7, 16, 64):
        x = torch.randn(rows, shape[1], generator=source)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            mine, bias = x.to(dtype), torch.randn(shape[0], generator=source).to(dtype)
            wanted = mine.double() @ values.T + bias.double()
            if few == 0:  # then the weight is rounded too, where products are taken in its dtype
                wanted = mine.double() @ values.to(many.multiplied_in(dtype)).double().T + bias.double()
            elif dtype == torch.bfloat16:
                wanted = whole_numbers(mine) @ values.T + bias.double()
            got = linear(mine, weight, bias, few)
            assert got.dtype == dtype
            # One rounding of the result, and those of a sum in float32.
            summed = mine.double().abs() @ values.abs().T + bias.double().abs()
            bound = 0.6 * torch.finfo(dtype).eps * wanted.abs() + 5e-7 * summed
            assert ((got.double() - wanted).abs() <= bound).all()


@pytest.mark.threads
def test_rows_do_not_depend_on_their_company() -> None:
    weight, _ = random_weight(0, True, 192, 576)
    x = torch.randn(9, 576, generator=torch.Generator().manual_seed(2)).bfloat16()
    together = linear(x, weight, few=64)
    for row in range(9):
        assert torch.equal(linear(x[row : row + 1], weight, few=64)[0], together[row])
        assert torch.equal(linear(x[: row + 1], weight, few=64)[row], together[row])


def test_leading_dimensions_and_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, values = random_weight(2, False, 50, 96)
    x = torch.randn(2, 3, 96)
    monkeypatch.setattr(many, "PIECE", 96 * 7)
    for few in (0, 64):
        torch.testing.assert_close(linear(x, weight, few=few), x @ values.float().T, rtol=1e-5, atol=1e-4)
    assert linear(x[:0], weight).shape == (0, 3, 50)


def test_nothing_behind_the_last_row_is_touched() -> None:
    """The last row ends where an array of NaN bytes begins, in scales as in codes."""
    weight, values = random_weight(1, True, 21, 32)
    data = torch.full((weight.data.numel() + 256,), 0xFF, dtype=torch.uint8)
    data[: weight.data.numel()] = weight.data.flatten()
    inside = replace(weight, data=data[: weight.data.numel()].view(weight.data.shape))
    x = torch.randn(3, 32)
    torch.testing.assert_close(linear(x, inside, few=8), x @ values.float().T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("kind", "minima"), ALL)
@pytest.mark.parametrize("columns", [32, 96, 576])
def test_tiles_hold_the_same_rows(kind: int, minima: bool, columns: int) -> None:
    tiled, values = random_weight(kind, minima, 40, columns)
    rows = tiled.picked(torch.arange(40))
    assert (tiled.tiled, rows.tiled, len(tiled.data)) == (40, None, 48)
    assert torch.equal(rows.checked().float(), values.float())
    assert torch.equal(rows.in_tiles().data, tiled.data)
    assert tiled[16:32].data.data_ptr() == tiled.data[16:].data_ptr()
    for start, stop in ((16, 32), (32, 40), (3, 20), (8, 40), (5, 5)):
        part = tiled[start:stop]
        assert part.shape == (stop - start, columns)
        assert torch.equal(part.float(), values[start:stop].float())
    picked = torch.tensor([39, 0, 16, 39])
    assert torch.equal(tiled.picked(picked).float(), values[picked].float())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_no_number_stays_none(bad: float) -> None:
    weight, _ = random_weight(0, True, 32, 64)
    for rows in (1, 3):
        x = torch.zeros(rows, 64).bfloat16()
        x[-1, 40] = bad
        y = linear(x, weight, few=8)
        assert not y[-1].isfinite().any()
        assert y[:-1].isfinite().all()
    for small in (0.0, 1e-39, 2.0**-120, 2.0**110):
        assert linear(torch.full((1, 64), small).bfloat16(), weight, few=8).isfinite().all()


def test_a_copy_lies_elsewhere_and_says_so() -> None:
    weight, values = random_weight(0, True, 32, 64)
    linear(torch.ones(1, 64), weight)
    copy = pickle.loads(pickle.dumps(weight))
    assert copy.facts[0] == copy.data.data_ptr() != weight.data.data_ptr()
    assert torch.equal(rows_of(copy, torch.tensor([31, 2], dtype=torch.int32), torch.float32), values[[31, 2]].float())


def test_scales_that_float16_cannot_hold() -> None:
    codes = torch.ones(2, 32, dtype=torch.int8)
    for bad in (1e9, 1e-9, float("nan"), float("inf")):
        assert pack(codes, torch.full((2, 1), bad), None) is None
    assert pack(codes, torch.zeros(2, 1), None) is not None


def test_rounding_to_packed() -> None:
    weight = torch.randn(20, 96, generator=torch.Generator().manual_seed(3))
    weight[3, 32:64] = 0.25
    for bits, share in ((4, 1 / 15), (8, 1 / 127)):
        rounded = quantize(weight, bits)
        assert rounded is not None
        assert rounded.bits == bits
        groups = weight.unflatten(1, (-1, 32))
        reach = groups.amax(2) - groups.amin(2) if bits == 4 else groups.abs().amax(2)
        off = (rounded.float() - weight).unflatten(1, (-1, 32)).abs().amax(2)
        assert (off <= 0.51 * share * reach + 2e-3).all()
    assert quantize(torch.randn(4, 40), 4) is None


def test_ids_outside_are_refused() -> None:
    weight, _ = random_weight(2, False, 6, 32)
    with pytest.raises(IndexError):
        rows_of(weight, torch.tensor([6]), torch.float32)


@pytest.mark.parametrize("dtype", packed.DIRECT)
def test_the_crossover_is_one_of_the_candidates(dtype: torch.dtype) -> None:
    packed.few_rows.cache_clear()
    assert packed.few_rows(0, True, dtype) in (0, *packed.CANDIDATES)
