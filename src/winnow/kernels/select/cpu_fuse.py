"""The structural prior and its fusion with the attention, with Numba, on addresses."""

import math
from typing import Any

import numpy as np
import torch
from numba import njit, prange, types
from torch import Tensor

from winnow.kernels.attend.softmax import ONE, ZERO
from winnow.kernels.launch import match_torch_threads
from winnow.kernels.select.cpu_mean import BLOCK, NOTHING, add_block, normalise, parallel
from winnow.kernels.select.lanes import count_up, divide, load_part, log, minimum, store_part, sub
from winnow.kernels.select.reference import EPS, Fusion
from winnow.kernels.simd import add, exp, fma, maximum, mul, read_f32, splat, sum_lanes, write_f32

TINY: Any = np.float32(EPS)
FADING: Any = np.float32(math.log(0.6) / 0.9)
EXPONENT: Any = np.float32(1.8)
LATE: Any = np.float32(0.4)
PLACE: Any = np.float32(0.7)
SIZE: Any = np.float32(-0.5)


@njit(cache=True, error_model="numpy")
def place_block(place: int, first: int, count: int, last: int) -> None:
    """What the structural prior says of candidates `first` to `first + count` of 0 .. `last`, for their place."""
    for j in range(0, count, 16):
        u = divide(count_up(first + j), splat(np.float32(last)))
        fading = mul(exp(mul(log(u), splat(EXPONENT))), splat(FADING))
        late = mul(log(maximum(sub(splat(ONE), u), splat(TINY))), splat(LATE))
        store_part(place + 4 * j, count - j, mul(add(fading, late), splat(PLACE)))


@njit(cache=True, error_model="numpy")
def prior_block(norms: int, place: int, out: int, count: int) -> None:
    """log r of `count` candidates, not normalised."""
    for j in range(0, count, 16):
        size = log(maximum(load_part(norms + 4 * j, count - j, ZERO), splat(TINY)))
        store_part(out + 4 * j, count - j, fma(size, splat(SIZE), load_part(place + 4 * j, count - j, ZERO)))


@parallel(*(types.int64,) * 6)
def prior_kernel(norms: int, stride: int, place: int, out: int, heads: int, count: int) -> None:
    for block in prange((count + BLOCK - 1) // BLOCK):
        at = block * BLOCK
        place_block(place + 4 * at, at, min(BLOCK, count - at), max(count - 1, 1))
    for head in prange(heads):
        mine, r = norms + head * stride, out + 4 * count * head
        top, total = NOTHING, ZERO
        for at in range(0, count, BLOCK):
            size = min(BLOCK, count - at)
            prior_block(mine + 4 * at, place + 4 * at, r + 4 * at, size)
            top, total = add_block(r + 4 * at, size, top, total)
        normalise(r, count, top, total)


def structural_prior(norms: Tensor) -> Tensor:
    heads, count = norms.shape
    out, place = torch.empty(heads, count), torch.empty(count)
    match_torch_threads()
    prior_kernel(norms.data_ptr(), 4 * norms.stride(0), place.data_ptr(), out.data_ptr(), heads, count)
    return out


@parallel(*(types.int64,) * 5, types.float32)
def weight_kernel(log_f: int, log_r: int, out: int, heads: int, count: int, most: float) -> None:
    for head in prange(heads):
        f_row, r_row = log_f + 4 * count * head, log_r + 4 * count * head
        gain, distance = 0.0, 0.0
        for at in range(0, count, BLOCK):
            product, square = splat(ZERO), splat(ZERO)
            for j in range(at, min(at + BLOCK, count), 16):
                f = exp(load_part(f_row + 4 * j, count - j, NOTHING))
                r = exp(load_part(r_row + 4 * j, count - j, NOTHING))
                difference = sub(f, r)
                product, square = fma(f, difference, product), fma(difference, difference, square)
            gain += sum_lanes(product)
            distance += sum_lanes(square)
        write_f32(out + 4 * head, np.float32(min(max(gain / max(distance, EPS), 0.0), most)))


def mixing_weight(log_f: Tensor, log_r: Tensor, most: float) -> Tensor:
    heads, count = log_f.shape
    log_f, log_r = log_f.contiguous(), log_r.contiguous()
    out = torch.empty(heads, 1)
    match_torch_threads()
    weight_kernel(log_f.data_ptr(), log_r.data_ptr(), out.data_ptr(), heads, count, most)
    return out


@njit(cache=True, error_model="numpy")
def forward_block(log_f: int, log_r: int, weight: float, out: int, count: int) -> None:
    """log((1 - weight) f + weight r) of `count` candidates."""
    for_f, for_r = splat(np.float32(np.log(ONE - weight))), splat(np.float32(np.log(weight)))
    for j in range(0, count, 16):
        a = add(load_part(log_f + 4 * j, count - j, ZERO), for_f)
        b = add(load_part(log_r + 4 * j, count - j, ZERO), for_r)
        larger = maximum(a, b)
        store_part(out + 4 * j, count - j, add(larger, log(add(splat(ONE), exp(sub(minimum(a, b), larger))))))


@njit(cache=True, error_model="numpy")
def reverse_block(log_f: int, log_r: int, weight: float, out: int, count: int) -> None:
    """(1 - weight) log f + weight log r of `count` candidates."""
    for j in range(0, count, 16):
        f, r = load_part(log_f + 4 * j, count - j, ZERO), load_part(log_r + 4 * j, count - j, ZERO)
        store_part(out + 4 * j, count - j, fma(sub(r, f), splat(weight), f))


@parallel(*(types.int64,) * 6, types.boolean)
def fuse_kernel(log_f: int, log_r: int, weights: int, out: int, heads: int, count: int, reverse: bool) -> None:
    for head in prange(heads):
        start, weight = 4 * count * head, read_f32(weights + 4 * head)
        top, total = NOTHING, ZERO
        for at in range(start, start + 4 * count, 4 * BLOCK):
            size = min(BLOCK, (start + 4 * count - at) // 4)
            if reverse:
                reverse_block(log_f + at, log_r + at, weight, out + at, size)
            else:
                forward_block(log_f + at, log_r + at, weight, out + at, size)
            top, total = add_block(out + at, size, top, total)
        normalise(out + start, count, top, total)


def fuse(log_f: Tensor, log_r: Tensor, weight: Tensor, fusion: Fusion) -> Tensor:
    heads, count = log_f.shape
    log_f, log_r, weight = log_f.contiguous(), log_r.contiguous(), weight.contiguous()
    out = torch.empty(heads, count)
    match_torch_threads()
    fuse_kernel(
        log_f.data_ptr(), log_r.data_ptr(), weight.data_ptr(), out.data_ptr(), heads, count, fusion == "reverse"
    )  # fmt: skip
    return out
