"""One pass over the weights for up to a few rows, with Numba.

A linear layer at one row reads every weight once and uses it once, so memory bandwidth bounds it. Each thread streams
whole weight rows in order (the hardware prefetcher follows one stream better than four at once), and rows of x beyond
the first multiply the weight row while it is in the first-level cache.
"""

import numpy as np
from numba import njit, prange, types

from winnow.kernels.simd import (
    add,
    dot_bf16,
    dot_f32,
    read_bf16,
    read_f32,
    splat,
    sum_lanes,
    write_bf16,
    write_f32,
)


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


@njit(types.void(*(types.int64,) * 8, types.boolean), cache=True, parallel=True, nogil=True, error_model="numpy")
def linear_kernel(
    x: int, weight: int, bias: int, y: int, rows: int, outs: int, row_bytes: int, parts: int, half: bool
) -> None:
    """y[r, o] = x[r] . weight[o] + bias[o]; contiguous and of one dtype, rows of x and weight `row_bytes` long.

    bias: 0 for none. parts: runs of outputs handed to the threads. half: bfloat16, else float32.
    """
    for part in prange(parts):
        for o in range(outs * part // parts, outs * (part + 1) // parts):
            shift = np.float32(0.0)
            if bias != 0:
                shift = read_bf16(bias + 2 * o) if half else read_f32(bias + 4 * o)
            for r in range(rows):
                value = dot(x + r * row_bytes, weight + o * row_bytes, row_bytes, half) + shift
                if half:
                    write_bf16(y + 2 * (r * outs + o), value)
                else:
                    write_f32(y + 4 * (r * outs + o), value)
