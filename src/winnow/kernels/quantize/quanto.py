"""quanto's arithmetic for 2 and 4 bits, as transformers' QuantizedCache calls it: optimum-quanto 0.2.7, `MaxOptimizer`.

Its groups are consecutive channels of one unit: what `axis=0` makes of keys and values whose head_dim is a multiple of
the group. All of it in the dtype of the units, whose rounding is part of the definition.
"""

from typing import NamedTuple

import torch
from torch import Tensor

FARTHEST = 127  # of a zero, in steps: it is kept as a signed byte


class QuantoCodes(NamedTuple):
    """codes: [..., head_dim * bits / 8] uint8. scales, shifts: [..., groups], in the dtype of the units; a code stands
    for `scale * code - shift`. Where zero is one of the codes, shifts are int8: `scale * (code - shift)`."""

    codes: Tensor
    scales: Tensor
    shifts: Tensor


def quanto_quantize(x: Tensor, bits: int, group: int, *, zero_point: bool = False) -> QuantoCodes:
    """Codes of keys or values [..., head_dim], whole groups; the scale of a group of equal values is 0.

    zero_point: whether minima are rounded to whole steps, so that zero is one of the codes if the group has values on
    both of its sides, as in older versions.
    """
    cut, most = x.unflatten(-1, (-1, group)), 2**bits - 1
    low, high = cut.amin(-1, keepdim=True), cut.amax(-1, keepdim=True)
    scales = (high - low) / most
    steps = torch.where(scales == 0, torch.ones_like(scales), scales)
    if zero_point:
        shifts = (-low / steps).round().clamp(-FARTHEST, FARTHEST)
        codes, shifts = (cut / steps).round() + shifts, shifts.to(torch.int8)
    else:
        shifts = -low
        codes = ((cut + shifts) / steps).round()
    lanes = codes.clamp(0, most).to(torch.uint8).flatten(-2).unflatten(-1, (-1, 8 // bits))
    packed = torch.zeros_like(lanes[..., 0])
    for plane, each in enumerate(lanes.unbind(-1)):
        packed |= each << (plane * bits)
    return QuantoCodes(packed, scales[..., 0], shifts[..., 0])


def quanto_dequantize(coded: QuantoCodes, bits: int) -> Tensor:
    """What `quanto_quantize` was given, as far as the codes tell: [..., head_dim] in the dtype of the scales."""
    groups = coded.scales.shape[-1]
    planes = [(coded.codes >> (plane * bits)) & (2**bits - 1) for plane in range(8 // bits)]
    codes = torch.stack(planes, -1).flatten(-2).unflatten(-1, (groups, -1))
    scales, shifts = coded.scales[..., None], coded.shifts[..., None]
    if shifts.dtype == torch.int8:
        return (scales * (codes.to(torch.int16) - shifts)).flatten(-2)
    return (scales * codes - shifts).flatten(-2)
