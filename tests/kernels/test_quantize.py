"""Codes stand for what they were made of, to half a step; the kernel equals the definition, and that its formula."""

import pytest
import torch

from winnow.kernels.quantize import Form, dequantize, dequantize_reference, quantize, scales_of

FORMS = [
    Form(bits, group, axis, "token", head_dim)
    for bits in (2, 4, 8)
    for axis in ("channel", "token")
    for group, head_dim in ((32, 64), (16, 96), (64, 128), (4, 16))
]


def units_of(form, count=128, heads=3, seed=0):
    """With outliers in some channels, as keys have."""
    torch.manual_seed(seed)
    x = torch.randn(heads, count, form.head_dim)
    x[..., ::7] *= 20
    return x + torch.randn(form.head_dim)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_code_is_within_half_a_step(form):
    x, axis = units_of(form), form.keys
    codes, scales = quantize(x, form, axis)
    assert codes.shape == (3, 128, form.head_dim * form.bits // 8)
    assert codes.dtype == torch.uint8
    assert codes[0].nbytes + scales[0].nbytes == 128 * form.unit_bytes // 2
    assert scales.nbytes == 3 * 128 * form.head_dim * 4 // form.group
    back = dequantize_reference(codes, scales, form, axis, 0, torch.float32)
    grouped = (x.unflatten(1, (-1, form.group)), 2) if axis == "channel" else (x.unflatten(2, (-1, form.group)), 3)
    step = ((grouped[0].amax(grouped[1]) - grouped[0].amin(grouped[1])) / (2**form.bits - 1)).repeat_interleave(
        form.group, grouped[1] - 1
    )
    rounding = x.abs().max() / 1024  # of scale and minimum to 16 bits
    assert ((back - x).abs() <= step / 2 + rounding).all()
    assert (back - x).abs().max() > 0


@pytest.mark.parametrize("axis", ["channel", "token"])
def test_one_group_by_hand(axis):
    """Scale (15 - 0) / 15 and minimum -3; byte i has channel i in its lower half, and i + 2 in its upper one."""
    form = Form(4, 4, axis, axis, 4)
    x = torch.tensor([[[-3.0, 0.0, 1.2, 12.0]]]).expand(1, 4, 4).clone()
    if axis == "channel":
        x = x.transpose(1, 2).clone()
    codes, scales = quantize(x, form, axis)
    assert scales.flatten().unique().tolist() == [-3.0, 1.0]
    expected = [0, 3, 4, 15]
    unit = expected if axis == "token" else [expected[0]] * 4
    assert codes[0, 0].tolist() == [unit[0] | unit[2] << 4, unit[1] | unit[3] << 4]


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_equal_values_come_back_whatever_they_are(bits):
    form = Form(bits, 32, "channel", "token", 64)
    x = torch.full((1, 32, 64), 0.3125)
    for axis in ("channel", "token"):
        assert torch.equal(dequantize(*quantize(x, form, axis), form, axis, 0, torch.float32), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", [form for form in FORMS if form.in_lanes], ids=str)
@pytest.mark.parametrize(("start", "stop"), [(0, 128), (5, 77), (64, 65)])
def test_the_kernel_equals_the_reference(form, dtype, start, stop):
    for axis in {form.keys, form.values}:
        codes, scales = quantize(units_of(form), form, axis)
        part = (codes[:, start:stop], scales_of(scales, form, axis, start, stop), form, axis, start % form.group)
        expected = dequantize_reference(codes, scales, form, axis, 0, torch.float32)[:, start:stop]
        assert torch.equal(dequantize_reference(*part, torch.float32), expected)
        torch.testing.assert_close(
            dequantize(*part, dtype), expected.to(dtype), rtol=2**-8 if dtype.itemsize == 2 else 1e-6, atol=1e-5
        )
