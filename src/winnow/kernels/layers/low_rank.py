"""What an adapter beside packed weights adds to a product of few rows, with Numba."""

from typing import Any

from numba import njit

from winnow.kernels.attend.softmax import ZERO
from winnow.kernels.layers import tables as t
from winnow.kernels.layers.rows import load, store
from winnow.kernels.linear.cpu import dot, put
from winnow.kernels.simd.arithmetic import add, fma, splat
from winnow.kernels.simd.memory import read_bf16, read_f32, read_i64

LANES = 16


@njit(cache=True, error_model="numpy", inline="always")
def value_at(x: int, i: int, half: bool) -> Any:
    """One of the values at an address, as float32."""
    return read_bf16(x + 2 * i) if half else read_f32(x + 4 * i)


@njit(cache=True, error_model="numpy")
def adapt(x: int, rows: int, part: int, first: int, last: int, y: int, stride: int, room: int, half: bool) -> None:
    """y[r, o] += sum over i of (down[i] . x[r]) * up[i, o] for outputs [first, last), rounded where modules round.

    part: the address of a product's places in the table. Every thread makes all down[i] . x[r] that it needs.
    """
    size, rank = 2 if half else 4, read_i64(part + 8 * t.RANK)
    down, up = read_i64(part + 8 * t.RANK_DOWN), read_i64(part + 8 * t.RANK_UP)
    wide, step = size * read_i64(part + 8 * t.COLUMNS), read_i64(part + 8 * t.RANK_BYTES)
    added, whole = room + size * rank, first + (last - first) // LANES * LANES
    for r in range(rows):
        for i in range(rank):
            put(dot(x + r * wide, down + i * wide, wide, half), 0, room, i, half)
        row = y + r * stride
        for o in range(size * first, size * whole, size * LANES):
            total = splat(ZERO)
            for i in range(rank):
                total = fma(splat(value_at(room, i, half)), load(up + i * step + o, half), total)
            store(row + o, add(load(row + o, half), store(added, total, half)), half)
        for o in range(whole, last):
            one = ZERO
            for i in range(rank):
                one += value_at(room, i, half) * value_at(up + i * step, o, half)
            put(one, 0, added, 0, half)
            put(value_at(added, 0, half), row, row, o, half)
