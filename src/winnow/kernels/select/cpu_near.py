"""Sliding maxima and exclusion between heads, with Numba, on addresses."""

from typing import Any

import numpy as np
import torch
from numba import njit, prange, types
from torch import Tensor

from winnow.kernels.attend.softmax import HIDDEN, ZERO
from winnow.kernels.launch import match_torch_threads
from winnow.kernels.select.cpu_mean import BLOCK, NOTHING, parallel
from winnow.kernels.select.lanes import load_part, log, store_part, sub
from winnow.kernels.select.reference import EPS
from winnow.kernels.simd import add, exp, fma, load_f32, maximum, mul, splat, store_f32

SHARE_FLOOR: Any = np.float32(np.log(EPS))
HALF: Any = np.float32(0.5)
TWO: Any = np.float32(2.0)
STRENGTH: Any = np.float32(0.85)


@njit(cache=True, error_model="numpy")
def near_block(row: int, at: int, size: int, count: int, reach: int, work: int, out: int, suppressing: bool) -> None:
    """The highest x of `row` within `reach` of candidates [at, at + size); or, suppressing, 2 x - that.

    By doubling: work[j] becomes the maximum of 2, 4, 8 .. values from j on, and two of those cover any window. It takes
    log2(width) steps, but of sixteen candidates each.
    """
    width, first = 2 * reach + 1, at - reach
    length = size + width + 16  # also what is read past the end
    for j in range(0, length + width, 16):
        store_f32(work + 4 * j, splat(HIDDEN))
    begin, end = max(first, 0), min(at + size + reach, count)
    for j in range(begin, end, 16):
        store_part(work + 4 * (j - first), end - j, load_part(row + 4 * j, end - j, HIDDEN))
    span = 1
    while 2 * span <= width:
        for j in range(0, 4 * length, 64):
            store_f32(work + j, maximum(load_f32(work + j), load_f32(work + j + 4 * span)))
        span *= 2
    rest = 4 * (width - span)
    for j in range(0, size, 16):
        highest, left, place = maximum(load_f32(work + 4 * j), load_f32(work + 4 * j + rest)), size - j, 4 * (at + j)
        if suppressing:
            highest = sub(mul(load_part(row + place, left, ZERO), splat(TWO)), highest)
        store_part(out + place, left, highest)


@parallel(*(types.int64,) * 9, types.boolean)
def near_kernel(
    scores: int, stride: int, out: int, heads: int, count: int, reach: int, block: int, work: int, parts: int,
    suppressing: bool,
) -> None:  # fmt: skip
    """`block` candidates at a time; work: room for block + 4 * reach + 64 float32, `parts` times."""
    blocks = (count + block - 1) // block
    size = 4 * (block + 4 * reach + 64)
    for part in prange(parts):
        for task in range(part, heads * blocks, parts):
            head, at = task // blocks, task % blocks * block
            near_block(
                scores + head * stride, at, min(block, count - at), count, reach, work + part * size,
                out + 4 * count * head, suppressing,
            )  # fmt: skip


def _near(scores: Tensor, reach: int, suppressing: bool) -> Tensor:
    heads, count = scores.shape
    reach = min(reach, count)
    block = max(BLOCK, 2 * reach)  # less than half of the work is for what lies around a block
    match_torch_threads()
    parts = torch.get_num_threads()
    out, work = torch.empty(heads, count), torch.empty(parts, block + 4 * reach + 64)
    near_kernel(
        scores.data_ptr(), 4 * scores.stride(0), out.data_ptr(), heads, count, reach, block, work.data_ptr(), parts,
        suppressing,
    )  # fmt: skip
    return out


def highest_near(scores: Tensor, reach: int) -> Tensor:
    return _near(scores, reach, suppressing=False)


def suppress(log_q: Tensor, width: int) -> Tensor:
    return _near(log_q, width // 2, suppressing=True)


@njit(cache=True, error_model="numpy")
def exclude_block(scores: int, stride: int, out: int, out_stride: int, heads: int, count: int) -> None:
    """x + 0.85 log(softmax over heads of x / 2) of `count` candidates; the softmax is at least EPS."""
    half = splat(HALF)
    for j in range(0, count, 16):
        left, top, total = count - j, splat(NOTHING), splat(ZERO)
        for head in range(heads):
            top = maximum(load_part(scores + head * stride + 4 * j, left, ZERO), top)
        for head in range(heads):
            total = add(total, exp(mul(sub(load_part(scores + head * stride + 4 * j, left, ZERO), top), half)))
        below = log(total)
        for head in range(heads):
            score = load_part(scores + head * stride + 4 * j, left, ZERO)
            share = maximum(sub(mul(sub(score, top), half), below), splat(SHARE_FLOOR))
            store_part(out + head * out_stride + 4 * j, left, fma(share, splat(STRENGTH), score))


@parallel(*(types.int64,) * 5)
def exclude_kernel(scores: int, stride: int, out: int, heads: int, count: int) -> None:
    for block in prange((count + BLOCK - 1) // BLOCK):
        at = block * BLOCK
        exclude_block(scores + 4 * at, stride, out + 4 * at, 4 * count, heads, min(BLOCK, count - at))


def exclude(scores: Tensor) -> Tensor:
    heads, count = scores.shape
    out = torch.empty(heads, count)
    match_torch_threads()
    exclude_kernel(scores.data_ptr(), 4 * scores.stride(0), out.data_ptr(), heads, count)
    return out
