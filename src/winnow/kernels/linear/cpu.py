"""One pass over the weights for up to a few rows, with Numba.

A linear layer at one row reads every weight once and uses it once, so memory bandwidth bounds it. Each thread streams
whole weight rows in order: the hardware prefetcher follows one stream better than four at once. Several rows of x go
against several weight rows in tiles of sixteen products, which fetch the next weight rows themselves.
"""

import numpy as np
from numba import njit, types

from winnow.kernels.dealt import arguments, kernel
from winnow.kernels.simd.arithmetic import add, dot_bf16, dot_f32, splat, sum_lanes
from winnow.kernels.simd.memory import read_bf16, read_f32, write_bf16, write_f32
from winnow.kernels.simd.tiles import dot_tile

tile_2x8, tile_4x4 = dot_tile(2, 8), dot_tile(4, 4)


@njit(types.float32(types.int64, types.int64, types.int64, types.boolean), cache=True)
def dot(a: int, b: int, size: int, half: bool) -> float:
    """The dot product of the `size` bytes at addresses `a` and `b`, of bfloat16 (`half`) or float32.

    Four sums, because one alone would wait for its own latency.
    """
    s0 = s1 = s2 = s3 = splat(np.float32(0.0))
    whole = size // 256 * 256
    if half:
        for i in range(0, whole, 256):
            s0, s1 = dot_bf16(s0, a + i, b + i), dot_bf16(s1, a + i + 64, b + i + 64)
            s2, s3 = dot_bf16(s2, a + i + 128, b + i + 128), dot_bf16(s3, a + i + 192, b + i + 192)
        for i in range(whole, size, 64):
            s0 = dot_bf16(s0, a + i, b + i)
    else:
        for i in range(0, whole, 256):
            s0, s1 = dot_f32(s0, a + i, b + i), dot_f32(s1, a + i + 64, b + i + 64)
            s2, s3 = dot_f32(s2, a + i + 128, b + i + 128), dot_f32(s3, a + i + 192, b + i + 192)
        for i in range(whole, size, 64):
            s0 = dot_f32(s0, a + i, b + i)
    return sum_lanes(add(add(s0, s1), add(s2, s3)))


@njit(cache=True, error_model="numpy")
def put(value: float, bias: int, y: int, o: int, half: bool) -> None:
    """y[o] = value + bias[o]; bias 0 for none."""
    if bias != 0:
        value += read_bf16(bias + 2 * o) if half else read_f32(bias + 4 * o)
    if half:
        write_bf16(y + 2 * o, value)
    else:
        write_f32(y + 4 * o, value)


@njit(cache=True, error_model="numpy")
def tiles(x: int, weight: int, y: int, rows: int, outs: int, first: int, last: int, row_bytes: int, half: bool) -> None:
    """y[r, o] = x[r] . weight[o] for outputs [first, last), float32: sixteen at a time, and what is left one by one."""
    wide, tall = (8, 2) if rows == 2 else (4, 4)
    whole = first + (last - first) // wide * wide
    for o in range(first, whole, wide):
        outputs = weight + o * row_bytes
        for r in range(0, rows, tall):
            place = y + 4 * (r * outs + o)
            ahead = outputs + wide * row_bytes if r == 0 else x
            if rows == 2:
                tile_2x8(x, row_bytes, outputs, row_bytes, row_bytes, place, 4 * outs, ahead, half)
            else:
                tile_4x4(x + r * row_bytes, row_bytes, outputs, row_bytes, row_bytes, place, 4 * outs, ahead, half)
    for o in range(whole, last):
        for r in range(rows):
            write_f32(y + 4 * (r * outs + o), dot(x + r * row_bytes, weight + o * row_bytes, row_bytes, half))


@njit(cache=True, error_model="numpy")
def linear_part(
    x: int, weight: int, bias: int, y: int, stride: int, sums: int, rows: int, outs: int, first: int, last: int,
    row_bytes: int, half: bool,
) -> None:  # fmt: skip
    """y[r, o] = x[r] . weight[o] + bias[o] for outputs [first, last); `stride` bytes from one row of y to the next."""
    if rows == 1:
        for o in range(first, last):
            put(dot(x, weight + o * row_bytes, row_bytes, half), bias, y, o, half)
        return
    tiles(x, weight, sums, rows, outs, first, last, row_bytes, half)
    for r in range(rows):
        for o in range(first, last):
            put(read_f32(sums + 4 * (r * outs + o)), bias, y + r * stride, o, half)


KINDS = "iiiiiiiib"


@kernel(KINDS)
def linear_kernel(part: int, parts: int, place: int) -> None:
    """y[r, o] = x[r] . weight[o] + bias[o]; contiguous and of one dtype, rows of x and weight `row_bytes` long.

    bias: 0 for none. rows: 1, 2 or a multiple of 4. sums: room for rows x outs float32 where rows is above 1; may be y.
    A part is a run of outputs. half: bfloat16, else float32.
    """
    x, weight, bias, y, sums, rows, outs, row_bytes, half = arguments(place, KINDS)
    first, last = outs * part // parts, outs * (part + 1) // parts
    linear_part(x, weight, bias, y, outs * (2 if half else 4), sums, rows, outs, first, last, row_bytes, half)
