"""The index of the highest scores, with Numba, on addresses.

The lowest score that is in is found by bisection, over floats in the order of their bits. A step counts the scores from
some value on, sixteen at once, which beats a histogram: most scores share a few exponents. It ends as soon as a value
has the right number of scores from it on, after about twenty steps, and never needs more than 32.
"""

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from winnow.kernels.attend.softmax import HIDDEN
from winnow.kernels.dealt import arguments, kernel
from winnow.kernels.launch import match_torch_threads
from winnow.kernels.select.lanes import above, at_least, bits_of, float_of, load_part, lowest_bit, number_of_bits, sub
from winnow.kernels.simd.arithmetic import max_lanes, maximum, splat
from winnow.kernels.simd.memory import write_i64
from winnow.kernels.team import fetch_add

NAN: Any = np.float32(np.nan)
SIGN = -(2**31)


@njit(cache=True, error_model="numpy")
def rank_of(value: float) -> int:
    """Integers in the order of floats; both zeros are 0."""
    bits = bits_of(value)
    return bits if bits >= 0 else SIGN - bits


@njit(cache=True, error_model="numpy")
def of_rank(rank: int) -> float:
    return float_of(rank if rank >= 0 else SIGN - rank)


@njit(cache=True, error_model="numpy")
def ends(row: int, count: int) -> tuple[float, float]:
    """The lowest and the highest of `count` scores."""
    low = high = splat(HIDDEN)
    zero = splat(np.float32(0.0))
    for j in range(0, count, 16):
        high = maximum(load_part(row + 4 * j, count - j, HIDDEN), high)
        low = maximum(sub(zero, load_part(row + 4 * j, count - j, -HIDDEN)), low)
    return -max_lanes(low), max_lanes(high)


@njit(cache=True, error_model="numpy")
def number_from(row: int, count: int, value: float) -> int:
    """How many of `count` scores are at least `value`."""
    number, bound = 0, splat(value)
    for j in range(0, count, 16):
        number += number_of_bits(at_least(load_part(row + 4 * j, count - j, NAN), bound))
    return number


@njit(cache=True, error_model="numpy")
def bound_for(row: int, count: int, chosen: int) -> float:
    """The highest value that at least `chosen` of the scores reach, or any value that just `chosen` of them do."""
    lowest, highest = ends(row, count)
    low, high = rank_of(lowest), rank_of(highest)
    while low < high:
        middle = low + (high - low + 1) // 2
        number = number_from(row, count, of_rank(middle))
        if number == chosen:
            return of_rank(middle)
        if number > chosen:
            low = middle
        else:
            high = middle - 1
    return of_rank(low)


@njit(cache=True, error_model="numpy")
def write_index(row: int, count: int, value: float, chosen: int, out: int) -> int:
    """The places of the scores above `value`, and of the first that equal it, `chosen` in all; returns how many."""
    bound, higher = splat(value), 0
    for j in range(0, count, 16):
        higher += number_of_bits(above(load_part(row + 4 * j, count - j, NAN), bound))
    room, written = chosen - higher, 0
    for j in range(0, count, 16):
        scores = load_part(row + 4 * j, count - j, NAN)
        bits = at_least(scores, bound)
        if bits == 0:
            continue
        sure = above(scores, bound)
        while bits != 0:
            lane = lowest_bit(bits)
            bits &= bits - 1
            if (sure >> lane) & 1 == 0:
                if room == 0:
                    continue
                room -= 1
            write_i64(out + 8 * written, j + lane)
            written += 1
    return written


KINDS = "iiiiii"


@kernel(KINDS)
def top_kernel(head: int, heads: int, place: int) -> None:
    """Counts at `missing` how many places are, which they are where scores are NaN."""
    scores, stride, out, count, chosen, missing = arguments(place, KINDS)
    row = scores + head * stride
    bound = bound_for(row, count, chosen)
    fetch_add(missing, chosen - write_index(row, count, bound, chosen, out + 8 * chosen * head))


def top(scores: Tensor, count: int) -> Tensor:
    heads, candidates = scores.shape
    out, missing = (
        torch.empty(heads, count, dtype=torch.int64, device="cpu"),
        torch.zeros(1, dtype=torch.int64, device="cpu"),
    )
    match_torch_threads()
    top_kernel(heads, scores.data_ptr(), 4 * scores.stride(0), out.data_ptr(), candidates, count, missing.data_ptr())
    if missing:
        raise ValueError("top: a score is NaN; scores must be numbers")
    return out
