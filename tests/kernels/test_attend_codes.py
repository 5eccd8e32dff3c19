"""Attention over codes, against attention over what they stand for."""

import math

import pytest
import torch

from winnow.cache.quantized import SIDES, QuantizedSlab
from winnow.kernels.attend import attend_reference
from winnow.kernels.launch import numba_missing
from winnow.kernels.quantize import Form, scales_of

pytestmark = pytest.mark.skipif(numba_missing() is not None, reason="the kernel needs Numba")


def slab_of(form, kv_heads, units, dtype):
    torch.manual_seed(0)
    slab = QuantizedSlab(form, kv_heads, dtype, torch.device("cpu"))
    slab.append(*(torch.randn(2, kv_heads, units + 64, form.head_dim) * 3).to(dtype), torch.arange(units + 64)[None])
    slab.units = units
    for codes, scales, side in zip(slab.codes, slab.scales, SIDES, strict=True):
        codes[:, slab.units // 16 :] = 255
        scales_of(scales, form, side, slab.units, slab.capacity).fill_(torch.nan)
    return slab


def attended(slab, q, first, units, scale, softcap=0.0, index=None):
    """[q_heads, head_dim] and the logits [q_heads, units] as the kernel gives them, q [q_heads, head_dim]."""
    from winnow.kernels.attend.cpu_codes import attend_codes, codes_floats
    from winnow.kernels.attend.cpu_decode import merge_runs, work_floats

    kv_heads, head_dim, half = len(slab.codes[0]), slab.form.head_dim, q.dtype == torch.bfloat16
    group = len(q) // kv_heads
    out, logits = torch.empty_like(q), torch.full((len(q), units), torch.nan)
    work = torch.full((work_floats(-(-group // 4) * 4, head_dim),), torch.nan)
    room = torch.full((codes_floats(group, head_dim),), torch.nan)
    for head in range(kv_heads):
        mine = slice(head * group, (head + 1) * group)
        work.view(q.dtype)[: group * head_dim] = q[mine].flatten()
        attend_codes(
            slab.facts.ctypes.data, head, first, 0, units, head_dim, group, scale, softcap, half, work.data_ptr(),
            logits[mine].data_ptr(), logits.stride(0) * 4, 0 if index is None else index[head].data_ptr(),
            room.data_ptr(),
        )  # fmt: skip
        for i in range(group):
            place = out[head * group + i].data_ptr()
            merge_runs(work.data_ptr(), work.nbytes, 1, i, group, head_dim, 0.0, False, place, half)
    return out, logits


FORMS = [
    Form(bits, 32, keys, values, 64)
    for bits in (2, 4, 8)
    for keys in ("channel", "token")
    for values in ("token", "channel")
]
FORMS += [Form(bits, 32, keys, "token", 64, hadamard=True) for bits in (2, 4, 8) for keys in ("token", "channel")]
FORMS += [
    Form(bits, 64, keys, values, 64, hadamard, of, group)
    for bits, of, group, hadamard in ((4, 2, 32, False), (2, 8, None, False), (8, 4, 16, True))
    for keys in ("channel", "token")
    for values in ("token", "channel")
]
FORMS += [Form(4, 32, "token", "token", 128, hadamard=True), Form(8, 16, "token", "token", 32, hadamard=True)]
FORMS += [Form(4, 16, "channel", "token", 96), Form(4, 64, "channel", "token", 128), Form(4, 64, "token", "token", 64)]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(("kv_heads", "group"), [(3, 3), (1, 1), (2, 2), (1, 7)])
@pytest.mark.parametrize(("first", "units"), [(0, 192), (37, 111), (64, 1)])
def test_equals_attention_over_what_codes_stand_for(form, kv_heads, group, first, units):
    slab = slab_of(form, kv_heads, 192, torch.float32)
    q, scale = torch.randn(kv_heads * group, form.head_dim), 1 / math.sqrt(form.head_dim)
    keys, values = (slab.read(side, first, first + units) for side in range(2))
    expected, _ = attend_reference(q[None], keys, values, torch.tensor([units]), torch.arange(units), scale=scale)
    got, logits = attended(slab, q, first, units, scale)
    torch.testing.assert_close(got, expected[0], rtol=0, atol=2e-5)
    exact = torch.einsum("hgd,hud->hgu", q.unflatten(0, (kv_heads, group)), keys).flatten(0, 1) * scale
    torch.testing.assert_close(logits, exact, rtol=0, atol=2e-4)


@pytest.mark.parametrize("hadamard", [False, True])
@pytest.mark.parametrize(
    ("bits", "of_values", "keys", "values"),
    [
        (4, None, "channel", "token"),
        (2, None, "token", "channel"),
        (8, None, "token", "token"),
        (4, 2, "channel", "token"),
    ],
)
def test_in_bfloat16_units_that_lie_apart_and_a_soft_cap(bits, of_values, keys, values, hadamard):
    form = Form(bits, 32, keys, values, 64, hadamard, of_values, of_values and 16)
    slab = slab_of(form, 2, 192, torch.bfloat16)
    q = torch.randn(6, 64).bfloat16()
    every = torch.stack([torch.randperm(128)[:40].sort().values for _ in range(2)])
    for index, softcap in ((None, 0.0), (None, 20.0), (every, 0.0)):
        units = 128 if index is None else 40
        slab.dtype = torch.float32 if index is None else torch.bfloat16  # codes are never rounded, units apart are
        pair = [slab.read(side, 0, 128).float() for side in range(2)]
        if index is not None:
            pair = [each.gather(1, index[..., None].expand(-1, -1, 64)) for each in pair]
        logits = torch.einsum("hgd,hud->hgu", q.float().unflatten(0, (2, 3)), pair[0]) * 0.125
        logits = softcap * (logits / softcap).tanh() if softcap else logits
        expected = (logits.softmax(-1) @ pair[1]).flatten(0, 1)
        got, _ = attended(slab, q, 0, units, 0.125, softcap, index)
        torch.testing.assert_close(got.float(), expected, rtol=2**-7, atol=2e-2)
