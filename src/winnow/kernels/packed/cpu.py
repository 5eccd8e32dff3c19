"""Products of few rows with packed weights, and packed weights as floats, with Numba.

A weight row is read once, as a stream, and multiplied with every row of x while its codes are in registers: codes
become bfloat16, which holds every integer up to 8 bits, and go through the bfloat16 dot product of newer CPUs;
elsewhere, and for float32 activations, they become float32. Scales multiply the sums of a group, minima the sums of x
over it.
"""

import numpy as np
from numba import njit, prange, types

from winnow.kernels.linear.cpu import put
from winnow.kernels.packed.lanes import WIDE, expand_block, load_bf16, load_f16, product_tile
from winnow.kernels.simd import (
    HAS_BF16_DOT,
    add,
    load_f32,
    read_bf16,
    read_f32,
    read_i64,
    splat,
    store_f32,
    sum_lanes,
    write_f32,
)

OUT = 4 * WIDE * WIDE  # bytes of the products of a tile

ANY = (0, 1, 2, 3)  # kinds

# At one row a thread reads its weights as one stream, which the hardware fetches ahead best.
half_one, full_one = (product_tile(1, 1, ANY, half) for half in (HAS_BF16_DOT, False))
half_many, full_many = (product_tile(WIDE, WIDE, ANY, half) for half in (HAS_BF16_DOT, False))


@njit(cache=True, error_model="numpy")
def sums_of_groups(x: int, rows: int, columns: int, group: int, padded: int, halves: bool, sums: int) -> None:
    """sums[r, g]: of x[r], bfloat16 (`halves`) or float32, over group g; 0 for the groups from columns / group on."""
    groups, size = columns // group, 2 if halves else 4
    for r in range(rows):
        for g in range(padded):
            total = splat(np.float32(0.0))
            if g < groups:
                for c in range(0, group, 16):
                    place = x + size * (r * columns + g * group + c)
                    total = add(total, load_bf16(place) if halves else load_f32(place))
            write_f32(sums + 4 * (r * padded + g), sum_lanes(total))


@njit(cache=True, error_model="numpy")
def widen(x: int, count: int, halves: bool, wide: int) -> None:
    """x as float32, the even columns of each 32 before the odd ones."""
    for start in range(0, count, 32):
        for c in range(32):
            value = read_bf16(x + 2 * (start + c)) if halves else read_f32(x + 4 * (start + c))
            write_f32(wide + 4 * (start + c // 2 + 16 * (c % 2)), value)


@njit(cache=True, error_model="numpy")
def packed_part(
    x: int, weight: int, bias: int, y: int, stride: int, scratch: int, rows: int, first: int, last: int, columns: int,
    row_bytes: int, group: int, kind: int, minima: bool, halves: bool, dots: bool,
) -> None:  # fmt: skip
    """y[r, o] = x[r] . weight[o] + bias[o] for outputs [first, last); `stride` bytes from one row of y to the next."""
    groups, out, sums = columns // group, scratch, scratch + OUT
    padded = (groups + 15) // 16 * 16
    if minima or (dots and kind < 2):
        sums_of_groups(x, rows, columns, group, padded, halves, sums)
    source, wide = x, 2 * columns
    if not dots:
        source, wide = sums + 4 * rows * padded, 4 * columns
        widen(x, rows * columns, halves, source)
    tile = 1 if rows == 1 else WIDE
    for start in range(first, last, tile):
        o = max(0, min(start, last - tile))  # the last tile overlaps the one before
        row = weight + o * row_bytes
        for r in range(0, rows, WIDE):
            here, mine = source + r * wide, sums + 4 * r * padded
            if rows > 1 and dots:
                half_many(here, wide, row, row_bytes, groups, kind, minima, mine, 4 * padded, out)
            elif rows > 1:
                full_many(here, wide, row, row_bytes, groups, kind, minima, mine, 4 * padded, out)
            elif dots:
                half_one(here, wide, row, row_bytes, groups, kind, minima, mine, 4 * padded, out)
            else:
                full_one(here, wide, row, row_bytes, groups, kind, minima, mine, 4 * padded, out)
            for i in range(tile):
                for j in range(tile):
                    put(read_f32(out + 4 * (tile * i + j)), bias, y + (r + i) * stride, o + j, halves)


@njit(
    types.void(*(types.int64,) * 12, *(types.boolean,) * 3), cache=True, parallel=True, nogil=True, error_model="numpy"
)
def product_kernel(
    x: int, weight: int, bias: int, y: int, scratch: int, rows: int, outs: int, columns: int, row_bytes: int,
    group: int, kind: int, parts: int, minima: bool, halves: bool, dots: bool,
) -> None:  # fmt: skip
    """y[r, o] = x[r] . weight[o] + bias[o].

    x [rows, columns], y [rows, outs], bias [outs]: bfloat16 (`halves`) or float32. rows: 1 or a multiple of WIDE; outs:
    at least WIDE; bias 0 for none. scratch: `scratch_bytes`, once for each of `parts`, runs of outputs that are handed
    to the threads. dots: x goes through the bfloat16 dot product.
    """
    room = OUT + 4 * rows * ((columns // group + 15) // 16 * 16 + columns)
    for part in prange(parts):
        first, last = outs * part // parts, outs * (part + 1) // parts
        packed_part(
            x, weight, bias, y, outs * (2 if halves else 4), scratch + part * room, rows, first, last, columns,
            row_bytes, group, kind, minima, halves, dots,
        )  # fmt: skip


def scratch_bytes(rows: int, columns: int, group: int) -> int:
    """What one part of `product_kernel` needs."""
    return OUT + 4 * rows * (-(-columns // group // 16) * 16 + columns)


@njit(
    types.void(*(types.int64,) * 10, *(types.boolean,) * 2), cache=True, parallel=True, nogil=True, error_model="numpy"
)
def expand_kernel(
    weight: int, rows: int, target: int, scratch: int, count: int, columns: int, row_bytes: int, group: int,
    kind: int, parts: int, minima: bool, half: bool,
) -> None:  # fmt: skip
    """target[i] = the values of weight row rows[i], for i < count, [count, columns] bfloat16 (`half`) or float32.

    rows: int64, or 0 for the first `count`. scratch: 128 bytes for each of `parts`.
    """
    groups = columns // group
    per_block, size = 32 // group, 2 if half else 4
    for part in prange(parts):
        scales = scratch + 128 * part
        least = scales + 64
        store_f32(least, splat(np.float32(0.0)))
        for i in range(count * part // parts, count * (part + 1) // parts):
            row = weight + row_bytes * (i if rows == 0 else read_i64(rows + 8 * i))
            codes = row + (4 if minima else 2) * groups
            for base in range(0, groups, 16):
                here = min(16, groups - base)
                store_f32(scales, load_f16(row + 2 * base, here))
                if minima:
                    store_f32(least, load_f16(row + 2 * (groups + base), here))
                for b in range(here // per_block):
                    block = base // per_block + b
                    where = target + size * (i * columns + 32 * block)
                    shift = 4 * per_block * b
                    expand_block(codes, block, scales + shift, least + shift, kind, not minima, where, half)
