"""Tiles: several dot products, or several weighted sums, at once."""

import itertools
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from winnow.kernels.simd.arithmetic import emit_dot_bf16, emit_dot_f32, emit_sum, sums_of_four, sums_of_sixteen
from winnow.kernels.simd.build import (
    at,
    call,
    constant,
    operation,
    prefetch,
    read,
    registers,
    shuffled,
    spread,
    widened,
    write,
)
from winnow.kernels.simd.kinds import BF16X32, F32, F32X16, HAS_BF16_DOT, HAS_WIDE_REGISTERS, I32, I64, LANES

# What of a tile is summed up at once: all of it where there are registers for that, elsewhere so many sums of products,
# or so many times sixteen columns of weighted rows.
NARROW_SUMS = 4
COLUMNS = 2 if HAS_WIDE_REGISTERS else 1


def dot_tile(queries: int, units: int) -> Any:
    """A function that stores queries x units dot products; the sums stay in registers until the end.

    (a, a_stride, b, b_stride, size, out, out_stride, ahead, half): out[i, j] = a[i] . b[j] over `size` bytes, of
    bfloat16 (`half`) or float32; strides in bytes, each out[i] contiguous float32. Sixteen products are added up
    together, in a third of the instructions that sixteen separate sums over lanes take. On the way, units * `size`
    bytes at `ahead` are fetched: evenly, because a burst of prefetches stalls the products behind it.
    """
    rows = queries if HAS_WIDE_REGISTERS else min(queries, 2)
    columns = units if HAS_WIDE_REGISTERS else min(units, NARROW_SUMS // rows)

    def emit(builder: Any, a: Any, b: Any, size: Any, out: Any, out_stride: Any, ahead: Any, product: Any) -> None:
        for first, start in itertools.product(range(0, queries, rows), range(0, units, columns)):
            mine = [(i, j) for i in range(first, first + rows) for j in range(start, start + columns)]
            sums = [registers(builder, constant(0.0, F32X16)) for _ in mine]
            with cgutils.for_range_slice(builder, I64(0), size, I64(64), I64) as (offset, _):
                if first == 0:
                    place = at(builder, at(builder, ahead, size, I64(start)), offset, I64(columns))
                    prefetch(builder, place, columns)
                for (i, j), total in zip(mine, sums, strict=True):
                    places = (builder.add(a[i], offset), builder.add(b[j], offset))
                    builder.store(product(builder, builder.load(total), *places), total)
            totals = _sums(builder, [builder.load(total) for total in sums])
            for i in range(rows):
                place = builder.add(at(builder, out, out_stride, I64(first + i)), I64(4 * start))
                write(builder, place, shuffled(builder, totals, totals, range(i * columns, (i + 1) * columns)), 4)

    @operation(types.void, *(types.int64,) * 8, types.boolean)
    def tile(
        builder: Any,
        a: Any,
        a_stride: Any,
        b: Any,
        b_stride: Any,
        size: Any,
        out: Any,
        out_stride: Any,
        ahead: Any,
        half: Any,
    ) -> None:
        a = [at(builder, a, a_stride, I64(i)) for i in range(queries)]
        b = [at(builder, b, b_stride, I64(j)) for j in range(units)]
        with builder.if_else(builder.trunc(half, ir.IntType(1))) as (then, otherwise):
            with then:
                emit(builder, a, b, size, out, out_stride, ahead, emit_dot_bf16)
            with otherwise:
                emit(builder, a, b, size, out, out_stride, ahead, emit_dot_f32)

    return tile


def _sums(builder: Any, vectors: list[Any]) -> Any:
    """Lane i of the result is the sum of the lanes of vectors[i]."""
    if len(vectors) == LANES:
        return sums_of_sixteen(builder, vectors)
    if len(vectors) == 4:
        return sums_of_four(builder, vectors)
    totals = ir.Constant(ir.VectorType(F32, len(vectors)), ir.Undefined)
    for lane, vector in enumerate(vectors):
        totals = builder.insert_element(totals, emit_sum(builder, vector), I32(lane))
    return totals


def weigh_tile(queries: int, half: bool) -> Any:
    """A function that adds weighted rows to `queries` running sums of 32 columns, held in registers.

    (weights, weights_stride, rows, rows_stride, count, sums, sums_stride, ahead):
    sums[i] += sum over j < count of weights[i, j] * rows[j]; strides in bytes, sums float32, rows bfloat16 (`half`) or
    float32, weights float32, or bfloat16 where `half` and HAS_BF16_DOT; those are followed by a 0 if `count` is odd. On
    the way, as many bytes at `ahead` are fetched as the columns of `rows` have.
    """
    emit = _emit_weigh_pairs if half and HAS_BF16_DOT else _emit_weigh_rows(widened if half else None)

    @operation(types.void, *(types.int64,) * 8)
    def tile(
        builder: Any,
        weights: Any,
        weights_stride: Any,
        rows: Any,
        rows_stride: Any,
        count: Any,
        sums: Any,
        sums_stride: Any,
        ahead: Any,
    ) -> None:
        weights = [at(builder, weights, weights_stride, I64(i)) for i in range(queries)]
        starts = [at(builder, sums, sums_stride, I64(i)) for i in range(queries)]
        emit(builder, weights, rows, rows_stride, count, starts, ahead)

    return tile


def _emit_weigh_rows(widen: Any) -> Callable[..., None]:
    """One row at a time; `widen` loads its 16 lanes as float32, or None where they are."""
    load, step = (widen, 32) if widen else (lambda builder, place: read(builder, place, F32X16, 4), 64)

    def emit(builder: Any, weights: Any, rows: Any, rows_stride: Any, count: Any, sums: Any, ahead: Any) -> None:
        for first in range(0, 2, COLUMNS):
            columns = range(first, first + COLUMNS)
            places = [builder.add(start, I64(64 * c)) for start in sums for c in columns]
            kept = [registers(builder, read(builder, place, F32X16, 4)) for place in places]
            with cgutils.for_range(builder, count) as loop:
                row = at(builder, rows, rows_stride, loop.index)
                if first == 0:
                    prefetch(builder, at(builder, ahead, I64(2 * step), loop.index), step // 32)
                lanes = [load(builder, builder.add(row, I64(step * c))) for c in columns]
                for i, weight in enumerate(weights):
                    factor = spread(builder, read(builder, at(builder, weight, I64(4), loop.index), F32, 4))
                    for total, mine in zip(kept[COLUMNS * i : COLUMNS * (i + 1)], lanes, strict=True):
                        grown = call(builder, "llvm.fma.v16f32", F32X16, factor, mine, builder.load(total))
                        builder.store(grown, total)
            for total, place in zip(kept, places, strict=True):
                write(builder, place, builder.load(total), 4)

    return emit


# Interleaving two rows inside blocks of 128 bits is one instruction; the sums are then kept in its order: columns 0-3,
# 8-11, 16-19, 24-27 and the others.
EVEN_BLOCKS = [8 * block + lane for block in range(4) for lane in range(4)]
ODD_BLOCKS = [column + 4 for column in EVEN_BLOCKS]
IN_ORDER = [(EVEN_BLOCKS + ODD_BLOCKS).index(column) for column in range(2 * LANES)]


def _emit_weigh_pairs(
    builder: Any, weights: Any, rows: Any, rows_stride: Any, count: Any, sums: Any, ahead: Any
) -> None:
    """Two rows at a time, with the bfloat16 dot product."""
    kept = []
    for start in sums:
        columns = [read(builder, builder.add(start, I64(64 * c)), F32X16, 4) for c in range(2)]
        kept += [
            registers(builder, shuffled(builder, columns[0], columns[1], order)) for order in (EVEN_BLOCKS, ODD_BLOCKS)
        ]
    last = builder.sub(count, I64(1))
    with cgutils.for_range_slice(builder, I64(0), count, I64(2), I64) as (index, _):
        prefetch(builder, at(builder, ahead, I64(64), index), 2)
        following = builder.add(index, I64(1))
        # Past the end there may be NaN, and 0 * NaN is NaN: an odd last row is paired with itself, at weight 0.
        following = builder.select(builder.icmp_signed("<", following, count), following, last)
        pair = [read(builder, at(builder, rows, rows_stride, j), BF16X32, 2) for j in (index, following)]
        mixed = [
            shuffled(builder, pair[0], pair[1], [column + row for column in order for row in (0, 2 * LANES)])
            for order in (EVEN_BLOCKS, ODD_BLOCKS)
        ]
        for i, weight in enumerate(weights):
            two = spread(builder, read(builder, at(builder, weight, I64(2), index), I32, 2))
            two = builder.bitcast(two, BF16X32)
            for c in range(2):
                total = kept[2 * i + c]
                name = "llvm.x86.avx512bf16.dpbf16ps.512"
                builder.store(call(builder, name, F32X16, builder.load(total), two, mixed[c]), total)
    for i, start in enumerate(sums):
        both = [builder.load(total) for total in kept[2 * i : 2 * i + 2]]
        for c in range(2):
            columns = shuffled(builder, both[0], both[1], IN_ORDER[LANES * c : LANES * (c + 1)])
            write(builder, builder.add(start, I64(64 * c)), columns, 4)
