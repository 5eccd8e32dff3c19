"""Products of few rows with packed weights, and packed weights as floats, with Numba.

A tile is read once, as a stream, and multiplied with some rows of x while its codes are in registers. Of bfloat16 each
block of 32 columns becomes whole numbers first, with one factor that is a power of two: see `whole_block`.
"""

import numpy as np
from numba import njit

from winnow.kernels.dealt import arguments, kernel
from winnow.kernels.linear.cpu import put
from winnow.kernels.packed.lanes import (
    FACTOR,
    FLOAT_SUMS,
    FLOATS,
    INTEGERS,
    LIFTS,
    MOST,
    ROOM,
    SUMS,
    expand_tile,
    power_below,
    product_of_tile,
    rounded,
    store_whole,
    write_whole,
)
from winnow.kernels.packed.weight import BLOCK, ROWS, TILE
from winnow.kernels.simd.arithmetic import add, max_lanes, maximum, mul, splat, sum_lanes
from winnow.kernels.simd.kinds import LANES
from winnow.kernels.simd.memory import load_bf16, load_f32, read_f32, read_i64, store_f32, write_f32
from winnow.kernels.simd.products import transpose_words

ANY = (0, 1, 2, 3)  # kinds
OUT = 4 * ROWS * TILE  # bytes of the products of a tile
EXPANDED = 4 * BLOCK * TILE  # bytes of the values of a block of a tile
TOP = np.float32(2.0**14)
LEAST = np.float32(2.0**-112)  # of a power that the reciprocal of, times TOP, is a number
SLIGHTLY = np.float32(32768 / MOST)

whole_one, whole_few = (product_of_tile(rows, ANY, True) for rows in (1, ROWS))
float_one, float_few = (product_of_tile(rows, ANY, False) for rows in (1, ROWS))


@njit(cache=True, error_model="numpy")
def whole_block(x: int, group: int, zero: int, place: int) -> None:
    """32 bfloat16 as whole numbers and a factor that is a power of two: exact but for those 2**7 times less than the
    largest and less, which are rounded to its last bit."""
    low, high, none = load_bf16(x), load_bf16(x + 32), splat(np.float32(0.0))
    minus = splat(np.float32(-1.0))
    most = max_lanes(maximum(maximum(low, mul(low, minus)), maximum(high, mul(high, minus))))
    finite = sum_lanes(add(mul(low, none), mul(high, none))) == 0  # of infinity or NaN times 0 there is no number
    if not finite:
        low = high = none
    power = max(power_below(most * SLIGHTLY), LEAST)
    scale = splat(TOP / power)
    low, high = rounded(mul(low, scale)), rounded(mul(high, scale))
    store_whole(place, low, high)
    factor = power / TOP if finite else np.float32(np.nan)
    write_f32(place + FACTOR, factor)
    first, second = sum_lanes(low), sum_lanes(high)
    if group == BLOCK:
        first += second
    for side, total in enumerate((first, second)):
        write_whole(place + LIFTS + 4 * side, -np.float32(zero) * total)
        write_f32(place + SUMS + 4 * side, factor * total)


@njit(cache=True, error_model="numpy")
def float_block(x: int, group: int, place: int) -> None:
    """32 float32, and the sum of each group."""
    for side in range(2):
        value = load_f32(x + 4 * LANES * side)
        store_f32(place + 4 * LANES * side, value)
        write_f32(place + FLOAT_SUMS + 4 * side, sum_lanes(value))
    if group == BLOCK:
        write_f32(place + FLOAT_SUMS, read_f32(place + FLOAT_SUMS) + read_f32(place + FLOAT_SUMS + 4))


@njit(cache=True, error_model="numpy")
def packed_part(
    x: int, weight: int, bias: int, y: int, stride: int, scratch: int, rows: int, first: int, last: int, columns: int,
    row_bytes: int, group: int, kind: int, minima: bool, half: bool,
) -> None:  # fmt: skip
    """y[r, o] = x[r] . weight[o] + bias[o] for outputs [first, last); `stride` bytes from one row of y to the next.

    rows: 1 or a multiple of ROWS. A tile that is not this part's alone is computed by its neighbour, too.
    """
    blocks, size = columns // BLOCK, INTEGERS if half else FLOATS
    zero = 128 if kind > 1 else (0 if minima else 8)
    made, wide = scratch + OUT, blocks * size
    for r in range(rows):
        for block in range(blocks):
            place, source = made + r * wide + block * size, x + (2 if half else 4) * (r * columns + block * BLOCK)
            if half:
                whole_block(source, group, zero, place)
            else:
                float_block(source, group, place)
    few = 1 if rows == 1 else ROWS
    for tile in range(first // TILE, (last + TILE - 1) // TILE):
        data, start = weight + tile * TILE * row_bytes, tile * TILE
        for r in range(0, rows, few):
            if rows == 1 and half:
                whole_one(made, wide, data, blocks, kind, minima, scratch)
            elif half:
                whole_few(made + r * wide, wide, data, blocks, kind, minima, scratch)
            elif rows == 1:
                float_one(made, wide, data, blocks, kind, minima, scratch)
            else:
                float_few(made + r * wide, wide, data, blocks, kind, minima, scratch)
            for i in range(few):
                for o in range(max(first, start), min(last, start + TILE)):
                    put(read_f32(scratch + 4 * (TILE * i + o - start)), bias, y + (r + i) * stride, o, half)


PRODUCT = "i" * 11 + "bb"


@kernel(PRODUCT)
def product_kernel(part: int, parts: int, place: int) -> None:
    """y[r, o] = x[r] . weight[o] + bias[o].

    x [rows, columns], y [rows, outs], bias [outs]: bfloat16 (`half`) or float32. rows: 1 or a multiple of ROWS; bias 0
    for none. scratch: `scratch_bytes`, once for every part, a run of tiles.
    """
    (
        x, weight, bias, y, scratch, rows, outs, columns, row_bytes, group, kind, minima, half,
    ) = arguments(place, PRODUCT)  # fmt: skip
    room, tiles = OUT + rows * (columns // BLOCK) * ROOM, (outs + TILE - 1) // TILE
    packed_part(
        x, weight, bias, y, outs * (2 if half else 4), scratch + part * room, rows, tiles * part // parts * TILE,
        min(tiles * (part + 1) // parts * TILE, outs), columns, row_bytes, group, kind, minima, half,
    )  # fmt: skip


def scratch_bytes(rows: int, columns: int) -> int:
    """What one part of `product_kernel` needs."""
    return OUT + rows * (columns // BLOCK) * ROOM


EXPAND = "i" * 8 + "bb"


@kernel(EXPAND)
def expand_kernel(part: int, parts: int, place: int) -> None:
    """The values of `count` tiles, [count * TILE, columns], or of as many rows, [count, columns], at `target`.

    rows: their numbers, int64; 0: tiles. bfloat16 (`half`) or float32. scratch: EXPANDED for every part.
    """
    weight, rows, target, scratch, count, columns, row_bytes, kind, minima, half = arguments(place, EXPAND)
    size, room = 2 if half else 4, scratch + part * EXPANDED
    for item in range(count * part // parts, count * (part + 1) // parts):
        row = TILE * item if rows == 0 else read_i64(rows + 8 * item)
        for block in range(columns // BLOCK):
            expand_tile(weight + row // TILE * TILE * row_bytes, block, kind, minima, half, room)
            out = target + size * (item * (TILE if rows == 0 else 1) * columns + block * BLOCK)
            if rows == 0:
                for side in range(1 if half else 2):
                    transpose_words(room + 64 * LANES * side, 64, out + 64 * side, size * columns)
                continue
            for word in range(size * BLOCK // 4):
                write_f32(out + 4 * word, read_f32(room + 4 * (LANES * word + row % TILE)))
