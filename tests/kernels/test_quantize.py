"""Codes stand for what they were made of, to half a step; the kernel equals the definition, and that its formula."""

import pytest
import torch

from winnow.kernels.quantize import Form, dequantize, quantize

FORMS = [
    Form(bits, group, axis, axis, head_dim)
    for bits in (2, 4, 8)
    for axis in ("channel", "token")
    for group, head_dim in ((32, 64), (16, 96), (64, 128), (16, 16))
]
FORMS += [
    Form(bits, 64, axis, axis, 64, value_bits=of, value_group=group)
    for axis in ("channel", "token")
    for bits, of, group in ((4, 2, None), (4, 2, 16), (2, 8, 32), (8, None, 16))
]


def units_of(form, count=128, heads=3, seed=0):
    """With outliers in some channels, as keys have."""
    torch.manual_seed(seed)
    x = torch.randn(heads, count, form.head_dim)
    x[..., ::7] *= 20
    return x + torch.randn(form.head_dim)


@pytest.mark.parametrize("side", ["keys", "values"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_code_is_within_half_a_step(form, side):
    x, axis = units_of(form), form.keys
    codes, scales = quantize(x, form, side)
    numbers = {"keys": (form.bits, form.group)}
    numbers["values"] = form.value_bits or form.bits, form.value_group or form.group
    bits, group = numbers[side]
    assert codes.nbytes == 3 * 128 * form.head_dim * bits // 8
    assert scales.nbytes == 3 * 128 * form.head_dim * 4 // group
    assert form.unit_bytes == sum(
        form.head_dim * each // 8 + form.head_dim * 4 // size for each, size in numbers.values()
    )
    back = dequantize(codes, scales, form, side, torch.float32)
    cut, at = (x.unflatten(1, (-1, group)), 2) if axis == "channel" else (x.unflatten(2, (-1, group)), 3)
    step = ((cut.amax(at) - cut.amin(at)) / (2**bits - 1)).repeat_interleave(group, at - 1)
    rounding = x.abs().max() / 1024  # of scale and minimum to 16 bits
    assert ((back - x).abs() <= step / 2 + rounding).all()
    assert (back - x).abs().max() > 0


def test_a_block_by_hand():
    """Every value is its own code: scale 1, minimum 0. The first chunk of keys has channels 0 to 3 in its lower halves
    and 8 to 11 in its upper ones, a lane being a unit; that of values units 0 to 3 and 4 to 7,
    a lane being a channel."""
    form = Form(4, 16, "channel", "channel", 16)
    unit, channel = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    x = ((unit * 5 + channel * 3) % 16).float()[None]
    for side in ("keys", "values"):
        codes, scales = quantize(x, form, side)
        assert (scales[0, 0, 0] == 1).all()
        assert (scales[0, 0, 1] == 0).all()
        chunk = codes[0, 0, :64].view(16, 4).int()
        for lane in range(16):
            for j in range(4):
                low, high = (x[0, lane, j], x[0, lane, 8 + j]) if side == "keys" else (x[0, j, lane], x[0, 4 + j, lane])
                assert chunk[lane, j] == int(low) | int(high) << 4


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_equal_values_come_back_whatever_they_are(bits):
    x = torch.full((1, 32, 64), 0.3125)
    for side in ("keys", "values"):
        form = Form(bits, 32, "channel", "token", 64)
        assert torch.equal(dequantize(*quantize(x, form, side), form, side, torch.float32), x)
