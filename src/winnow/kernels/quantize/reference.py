"""Asymmetric quantisation of groups, in plain torch (KIVI, arXiv:2402.02750, section 3.1)."""

import math

import torch
from torch import Tensor

from winnow.kernels.quantize.form import BLOCK, Form, Side

LARGEST = 65504.0  # of a half


def quantize(x: Tensor, form: Form, side: Side) -> tuple[Tensor, Tensor]:
    """Codes and scales of keys or values [kv_heads, units, head_dim], whole groups of units.

    A code stands for `scale * code + minimum`, of its group: of `form.group_of(side)` consecutive units in a channel,
    or as many consecutive channels of a unit, as `form.axis(side)` says. Under `form.hadamard` keys are transformed
    first.

    Returns codes [kv_heads, units / 16, 16 * row_bytes] uint8, and scales and then minima, float16: [kv_heads, groups
    of units, 2, head_dim], or [kv_heads, 2, groups of channels, units]. Codes lie so that a kernel takes 64 bytes at
    once, as 16 lanes of four codes, `planes` times over: plane p is in the bits from p * bits on. Of keys a lane is a
    unit of the block of sixteen; the chunk k has channels 4 k to 4 k + 3 of plane 0, those of the next plane are
    row_bytes further. Of values a lane is a channel; a chunk has four units for every plane, and sixteen channels,
    which follow one another before the next units do.
    """
    kv_heads, units, head_dim = x.shape
    levels, group = 2 ** form.bits_of(side) - 1, form.group_of(side)
    by_channel = form.axis(side) == "channel"
    x = hadamard(x.float()) if form.transforms(side) else x.float()
    cut, at = (x.unflatten(1, (-1, group)), 2) if by_channel else (x.unflatten(2, (-1, group)), 3)
    low, high = cut.amin(at, keepdim=True), cut.amax(at, keepdim=True)
    minima = low.clamp(-LARGEST, LARGEST).half()
    scales = ((high - minima.float()) / levels).clamp(0, LARGEST).half()
    # Of a group of equal values the scale is 0, and so is every code.
    steps = (cut - minima.float()) / torch.where(scales == 0, 1.0, scales.float())
    codes = steps.round().clamp(0, levels).to(torch.uint8).view(kv_heads, units // BLOCK, BLOCK, head_dim)
    if by_channel:
        told = torch.stack((scales[:, :, 0], minima[:, :, 0]), 2)
    else:
        told = torch.stack((scales[..., 0].transpose(1, 2), minima[..., 0].transpose(1, 2)), 1)
    return interleaved(codes, form, side), told


def hadamard(x: Tensor) -> Tensor:
    """The orthonormal Walsh-Hadamard transform of the last dimension, a power of two: its own inverse, and the products
    of two vectors are those of their transforms (QuaRot, arXiv:2404.00456). float32."""
    size, step = x.shape[-1], 1
    while step < size:
        first, second = x.unflatten(-1, (-1, 2, step)).unbind(-2)
        x = torch.stack((first + second, first - second), -2).flatten(-3)
        step *= 2
    return x / math.sqrt(size)


def interleaved(codes: Tensor, form: Form, side: Side) -> Tensor:
    """[kv_heads, blocks, 16 * row_bytes] of [kv_heads, blocks, 16, head_dim]."""
    planes, (kv_heads, blocks) = form.planes(side), codes.shape[:2]
    if side == "keys":
        lanes = codes.view(kv_heads, blocks, BLOCK, planes, -1, 4).permute(3, 0, 1, 4, 2, 5)
    else:
        lanes = codes.view(kv_heads, blocks, -1, planes, 4, form.head_dim // 16, 16).permute(3, 0, 1, 2, 5, 6, 4)
    packed = torch.zeros_like(lanes[0], memory_format=torch.contiguous_format)
    for plane, each in enumerate(lanes):
        packed |= each << (plane * form.bits_of(side))
    return packed.reshape(kv_heads, blocks, -1)


def in_order(packed: Tensor, form: Form, side: Side) -> Tensor:
    """The inverse of `interleaved`."""
    planes, bits, (kv_heads, blocks) = form.planes(side), form.bits_of(side), packed.shape[:2]
    lanes = torch.stack([(packed >> (plane * bits)) & (2**bits - 1) for plane in range(planes)])
    if side == "keys":
        codes = lanes.view(planes, kv_heads, blocks, -1, BLOCK, 4).permute(1, 2, 4, 0, 3, 5)
    else:
        codes = lanes.view(planes, kv_heads, blocks, -1, form.head_dim // 16, 16, 4).permute(1, 2, 3, 0, 6, 4, 5)
    return codes.reshape(kv_heads, blocks * BLOCK, form.head_dim)


def dequantize(codes: Tensor, scales: Tensor, form: Form, side: Side, dtype: torch.dtype) -> Tensor:
    """What `quantize` was given, as far as the codes tell: [kv_heads, units, head_dim] in `dtype`."""
    values, group = in_order(codes, form, side).float(), form.group_of(side)
    if form.axis(side) == "channel":
        scale, low = scales.float().repeat_interleave(group, 1).unbind(2)
    else:
        scale, low = scales.float().transpose(2, 3).repeat_interleave(group, 3).unbind(1)
    x = torch.addcmul(low, values, scale)
    return (hadamard(x) if form.transforms(side) else x).to(dtype)
