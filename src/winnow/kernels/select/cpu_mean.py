"""The power mean with Numba.

Kernels work on addresses. A head's candidates go in blocks that stay in the first-level cache, and sums of exponentials
are kept relative to a running maximum: logits are read twice, whatever the number of passes in the definition.
"""

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from winnow.kernels.attend.softmax import HIDDEN, ZERO
from winnow.kernels.dealt import arguments, kernel
from winnow.kernels.floats import floats
from winnow.kernels.launch import match_torch_threads
from winnow.kernels.select.lanes import load_part, log, store_part, sub
from winnow.kernels.select.reference import LEAST, LOWEST
from winnow.kernels.simd.arithmetic import add, exp, fma, max_lanes, maximum, mul, splat, sum_lanes
from winnow.kernels.simd.memory import read_f32, write_f32

BLOCK = 2048  # candidates; 8 KiB
FLOOR: Any = np.float32(LEAST)
NOTHING: Any = np.float32(LOWEST)
ONE: Any = np.float32(1)


@njit(cache=True, error_model="numpy")
def add_block(row: int, count: int, top: float, total: float) -> tuple[Any, Any]:
    """A running maximum, and the sum of e**(x - maximum), after `count` more x at `row`; they start at LOWEST and 0."""
    best = splat(top)
    for j in range(0, count, 16):
        best = maximum(load_part(row + 4 * j, count - j, HIDDEN), best)
    raised = max_lanes(best)
    shift, added = splat(raised), splat(ZERO)
    for j in range(0, count, 16):
        added = add(added, exp(sub(load_part(row + 4 * j, count - j, HIDDEN), shift)))
    return raised, np.float32(total * np.exp(top - raised) + sum_lanes(added))


@njit(cache=True, error_model="numpy")
def log_sum_exp(row: int, count: int) -> float:
    """Of `count` logits; infinity where all are -inf, so that what is taken relative to it vanishes."""
    top, total = NOTHING, ZERO
    for at in range(0, count, BLOCK):
        top, total = add_block(row + 4 * at, min(BLOCK, count - at), top, total)
    return top + np.log(total) if total > 0 else -HIDDEN


@njit(cache=True, error_model="numpy")
def normalise(row: int, count: int, top: float, total: float) -> None:
    """Take off the logarithm of the sum of exponentials, down to LEAST.

    In two steps: against a maximum of LOWEST, the logarithm of the total alone would be lost.
    """
    shift, rest, floor = splat(top), splat(np.float32(np.log(total))), splat(FLOOR)
    for j in range(0, count, 16):
        place, left = row + 4 * j, count - j
        store_part(place, left, maximum(sub(sub(load_part(place, left, ZERO), shift), rest), floor))


@njit(cache=True, error_model="numpy")
def mean_block(
    logits: int, row_stride: int, sums: int, rows: int, seeing: float, alpha: float, out: int, count: int
) -> None:  # fmt: skip
    """log of the power mean, not normalised, of `count` candidates.

    sums: of the rows, as `log_sum_exp` gives them, less the logarithm of a row's weight over alpha. seeing: the weight
    of all rows that see something.
    """
    lowest, factor, scale = splat(NOTHING), splat(alpha), np.float32(1 / alpha)
    shift, unscale = splat(-np.float32(np.log(seeing)) * scale), splat(scale)
    for j in range(0, count, 16):
        left, best, total = count - j, lowest, splat(ZERO)
        for r in range(rows):
            log_p = sub(load_part(logits + r * row_stride + 4 * j, left, ZERO), splat(read_f32(sums + 4 * r)))
            best = maximum(mul(log_p, factor), best)
        for r in range(rows):
            log_p = sub(load_part(logits + r * row_stride + 4 * j, left, ZERO), splat(read_f32(sums + 4 * r)))
            total = add(total, exp(fma(log_p, factor, sub(splat(ZERO), best))))
        store_part(out + 4 * j, left, maximum(fma(add(best, log(total)), unscale, shift), lowest))


@njit(cache=True, error_model="numpy")
def geometric_block(
    logits: int, row_stride: int, sums: int, weights: int, rows: int, seeing: float, out: int, count: int
) -> None:  # fmt: skip
    """The same for alpha 0: the mean of the logarithms, of the rows that see something; sums: as they are."""
    share, lowest = splat(np.float32(1 / seeing)), splat(NOTHING)
    for j in range(0, count, 16):
        left, total = count - j, splat(ZERO)
        for r in range(rows):
            if read_f32(sums + 4 * r) < -HIDDEN:
                log_p = sub(load_part(logits + r * row_stride + 4 * j, left, ZERO), splat(read_f32(sums + 4 * r)))
                total = fma(log_p, splat(read_f32(weights + 4 * r)), total)
        store_part(out + 4 * j, left, maximum(mul(total, share), lowest))


KINDS = "iiiiiiiif"


@kernel(KINDS)
def mean_kernel(head: int, heads: int, place: int) -> None:
    """`power_mean()` of one head, on addresses; strides in bytes."""
    logits, head_stride, row_stride, weights, sums, out, rows, count, alpha = arguments(place, KINDS)
    mine, lses, f = logits + head * head_stride, sums + 4 * rows * head, out + 4 * count * head
    seeing: Any = ZERO
    for r in range(rows):
        lse, weight = log_sum_exp(mine + r * row_stride, count), read_f32(weights + 4 * r)
        seeing += weight if lse < -HIDDEN else ZERO
        write_f32(lses + 4 * r, lse if alpha == 0 else lse - np.log(weight) / alpha)
    seeing = seeing if seeing > ZERO else ONE
    top, total = NOTHING, ZERO
    for at in range(0, count, BLOCK):
        size = min(BLOCK, count - at)
        if alpha == 0:
            geometric_block(mine + 4 * at, row_stride, lses, weights, rows, seeing, f + 4 * at, size)
        else:
            mean_block(mine + 4 * at, row_stride, lses, rows, seeing, alpha, f + 4 * at, size)
        top, total = add_block(f + 4 * at, size, top, total)
    normalise(f, count, top, total)


def power_mean(logits: Tensor, alpha: float, weights: Tensor | None = None) -> Tensor:
    """As in `reference.py`."""
    heads, rows, count = logits.shape
    each = torch.ones(rows, dtype=torch.float32, device="cpu") if weights is None else weights.contiguous()
    out, sums = floats(heads, count), floats(heads, rows)
    head_stride, row_stride = 4 * logits.stride(0), 4 * logits.stride(1)
    match_torch_threads()
    mean_kernel(
        heads, logits.data_ptr(), head_stride, row_stride, each.data_ptr(), sums.data_ptr(), out.data_ptr(), rows,
        count, alpha,
    )  # fmt: skip
    return out
