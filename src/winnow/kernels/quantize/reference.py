"""Asymmetric quantisation of groups, in plain torch (KIVI, arXiv:2402.02750, section 3.1)."""

import torch
from torch import Tensor

from winnow.kernels.quantize.form import Axis, Form

LARGEST = 65504.0  # of a half


def quantize(x: Tensor, form: Form, axis: Axis) -> tuple[Tensor, Tensor]:
    """Codes and scales of keys or values [kv_heads, units, head_dim].

    axis: "channel": a group is `form.group` consecutive units in a channel, of which there are whole groups; "token":
    as many consecutive channels of a unit.

    Returns codes [kv_heads, units, row_bytes] uint8, and scales and then minima, float16: [kv_heads, groups of units,
    2, head_dim], or [kv_heads, 2, groups of channels, units]. A code stands for `scale * code + minimum`. Byte i of a unit
    has the codes of channels i, row_bytes + i, and so on, the first in its lowest bits.
    """
    kv_heads, units, head_dim = x.shape
    levels, group = 2**form.bits - 1, form.group
    at = 2 if axis == "channel" else 3
    cut = (
        x.float().view(kv_heads, units // group, group, head_dim)
        if axis == "channel"
        else (x.float().view(kv_heads, units, head_dim // group, group))
    )
    low, high = cut.amin(at, keepdim=True), cut.amax(at, keepdim=True)
    minima = low.clamp(-LARGEST, LARGEST).half()
    scales = ((high - minima.float()) / levels).clamp(0, LARGEST).half()
    # Of a group of equal values the scale is 0, and so is every code.
    steps = (cut - minima.float()) / torch.where(scales == 0, 1.0, scales.float())
    codes = steps.round().clamp(0, levels).to(torch.uint8).view(kv_heads, units, 8 // form.bits, form.row_bytes)
    packed = torch.zeros(kv_heads, units, form.row_bytes, dtype=torch.uint8, device=x.device)
    for plane in range(8 // form.bits):
        packed |= codes[:, :, plane] << (plane * form.bits)
    if axis == "channel":
        return packed, torch.stack((scales[:, :, 0], minima[:, :, 0]), 2)
    return packed, torch.stack((scales[..., 0].transpose(1, 2), minima[..., 0].transpose(1, 2)), 1)


def dequantize_reference(
    codes: Tensor, scales: Tensor, form: Form, axis: Axis, first: int, dtype: torch.dtype
) -> Tensor:
    """See `dequantize`."""
    units = codes.shape[1]
    planes = [(codes >> (plane * form.bits)) & (2**form.bits - 1) for plane in range(8 // form.bits)]
    values = torch.cat(planes, 2).float()
    if axis == "channel":
        rows = torch.arange(first, first + units, device=codes.device) // form.group
        scale, low = scales.float()[:, rows].unbind(2)
    else:
        scale, low = scales.float().transpose(2, 3).repeat_interleave(form.group, 3).unbind(1)
    return torch.addcmul(low, values, scale).to(dtype)
