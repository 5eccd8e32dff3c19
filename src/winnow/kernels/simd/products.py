"""Matrix products: tiles of rows by packed panels, and the words that panels are packed in.

A word is 32 bits: one float32, or two bfloat16 that belong to neighbouring steps of the inner dimension.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from winnow.kernels.simd.build import at, call, constant, halves, operation, read, registers, shuffled, spread, write
from winnow.kernels.simd.kinds import (
    BF16X32,
    F32,
    F32X16,
    HAS_WIDE_REGISTERS,
    I16,
    I32,
    I32X16,
    I64,
    LANES,
)  # fmt: skip

TILE_ROWS = 12
PANEL = 2 * LANES  # columns of a packed panel: [words, PANEL]
# What of a tile is summed up at once, as much as registers hold: all of it, or a quarter.
BLOCK_ROWS, BLOCK_COLUMNS = (TILE_ROWS, PANEL) if HAS_WIDE_REGISTERS else (TILE_ROWS // 2, LANES)


def product_tile(a_stride: int, half: bool) -> Any:
    """A function that multiplies TILE_ROWS rows by a panel, the sums of a block in registers.

    (a, panel, words, c, c_stride, accumulate): c[i] (+)= sum over w < words of a[i, w] * panel[w]; `a_stride` and
    `c_stride` in bytes, a of words, c of PANEL float32. half: words of two bfloat16, only where HAS_BF16_DOT.
    """
    multiply = _emit_multiply_halves if half else _emit_multiply

    @operation(types.void, *(types.int64,) * 5, types.boolean)
    def tile(builder: Any, a: Any, panel: Any, words: Any, c: Any, c_stride: Any, accumulate: Any) -> None:
        before = builder.trunc(accumulate, ir.IntType(1))
        for row in range(0, TILE_ROWS, BLOCK_ROWS):
            rows = builder.add(a, I64(a_stride * row))
            for column in range(0, PANEL, BLOCK_COLUMNS):
                sums = builder.add(at(builder, c, c_stride, I64(row)), I64(4 * column))
                columns = builder.add(panel, I64(4 * column))
                _emit_block(builder, rows, a_stride, columns, words, sums, c_stride, before, multiply)

    return tile


def _emit_block(
    builder: Any, a: Any, a_stride: int, panel: Any, words: Any, c: Any, c_stride: Any, accumulate: Any, multiply: Any
) -> None:
    """BLOCK_ROWS rows by BLOCK_COLUMNS of a panel, all sums in registers."""
    sides = [64 * side for side in range(BLOCK_COLUMNS // LANES)]
    places = [builder.add(at(builder, c, c_stride, I64(row)), I64(side)) for row in range(BLOCK_ROWS) for side in sides]
    kept = [registers(builder, constant(0.0, F32X16)) for _ in places]
    with builder.if_then(accumulate):
        for total, place in zip(kept, places, strict=True):
            builder.store(read(builder, place, F32X16, 4), total)
    with cgutils.for_range(builder, words) as loop:
        line = at(builder, panel, I64(4 * PANEL), loop.index)
        lanes = [read(builder, builder.add(line, I64(side)), F32X16, 4) for side in sides]
        column = at(builder, a, I64(4), loop.index)
        for row in range(BLOCK_ROWS):
            word = read(builder, builder.add(column, I64(a_stride * row)), I32, 4)
            for total, side in zip(kept[len(sides) * row :], lanes, strict=False):
                builder.store(multiply(builder, builder.load(total), word, side), total)
    for total, place in zip(kept, places, strict=True):
        write(builder, place, builder.load(total), 4)


def _emit_multiply(builder: Any, total: Any, word: Any, lanes: Any) -> Any:
    """A float32 with sixteen others."""
    return call(builder, "llvm.fma.v16f32", F32X16, spread(builder, builder.bitcast(word, F32)), lanes, total)


def _emit_multiply_halves(builder: Any, total: Any, word: Any, lanes: Any) -> Any:
    """Two bfloat16 with sixteen pairs of them."""
    pairs = (builder.bitcast(spread(builder, word), BF16X32), builder.bitcast(lanes, BF16X32))
    return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", F32X16, total, *pairs)


@operation(types.void, types.int64, types.int64)
def split_words(builder: Any, source: Any, target: Any) -> None:
    """PANEL words of two bfloat16 at `source`, as float32: all first ones at `target`, then all second ones."""
    lines = [read(builder, builder.add(source, I64(64 * side)), I32X16, 4) for side in range(PANEL // LANES)]
    for side, line in enumerate(lines):
        for which, floats in enumerate(halves(builder, line)):
            write(builder, builder.add(target, I64(4 * PANEL * which + 64 * side)), floats, 4)


@operation(types.void, types.int64, types.int64, types.int64, types.int64)
def transpose_words(builder: Any, source: Any, source_stride: Any, target: Any, target_stride: Any) -> None:
    """16 x 16 words: target[i, j] = source[j, i]; strides in bytes."""
    lines = [read(builder, at(builder, source, source_stride, I64(i)), F32X16, 4) for i in range(LANES)]
    for distance in (8, 4, 2, 1):
        for i in range(LANES):
            if i & distance:
                continue
            a, b = lines[i], lines[i + distance]
            upper = [lane if not lane & distance else LANES + lane - distance for lane in range(LANES)]
            lower = [lane + distance if not lane & distance else LANES + lane for lane in range(LANES)]
            lines[i], lines[i + distance] = shuffled(builder, a, b, upper), shuffled(builder, a, b, lower)
    for i, line in enumerate(lines):
        write(builder, at(builder, target, target_stride, I64(i)), line, 4)


@operation(types.void, types.int64, types.int64, types.int64)
def pair_rows(builder: Any, first: Any, second: Any, target: Any) -> None:
    """The 32 bfloat16 at `first` and at `second`, as 32 words at `target`."""
    kind = ir.VectorType(I16, PANEL)
    rows = [read(builder, place, kind, 2) for place in (first, second)]
    for side in range(2):
        lanes = [lane + row for lane in range(LANES * side, LANES * (side + 1)) for row in (0, PANEL)]
        write(builder, builder.add(target, I64(64 * side)), shuffled(builder, rows[0], rows[1], lanes), 4)
