"""What the packed kernels need of vectors beyond `winnow.kernels.simd`: codes and half-precision scales as lanes.

A block is 32 codes: `lane i` stands for the codes 2i and 2i + 1 of it, as the bfloat16 dot product takes them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from winnow.kernels.packed.weight import KINDS
from winnow.kernels.simd import (
    BF16X32,
    F32,
    F32X16,
    I8,
    I16,
    I32,
    I32X16,
    I64,
    LANES,
    at,
    call,
    constant,
    emit_sum,
    narrowed,
    operation,
    read,
    registers,
    shuffled,
    spread,
    sums_of_sixteen,
    vector,
    widened,
    write,
)

WIDE = 4  # weight rows of a tile, which share the loads of x, where there are several rows of that

F16X16, I16X16, I16X32 = (ir.VectorType(ir.HalfType(), LANES), ir.VectorType(I16, LANES), ir.VectorType(I16, 32))
I8X16, I8X32 = ir.VectorType(I8, LANES), ir.VectorType(I8, 32)
FIRST_HALF = ir.Constant(ir.VectorType(ir.IntType(1), LANES), [ir.Constant(ir.IntType(1), i < 8) for i in range(LANES)])
SIGNED_4, UNSIGNED_4 = (  # what codes of 4 bits stand for, as the bits of bfloat16, twice
    ir.Constant(
        I16X32,
        [
            ir.Constant(I16, value >> 16)
            for value in 2 * np.arange(first, first + 16, dtype=np.float32).view(np.uint32).tolist()
        ],
    )
    for first in (-8, 0)
)


def halves(builder: Any, address: Any, count: Any) -> Any:
    """The first `count` of sixteen float16 as float32, 0 in the other lanes; nothing behind them is touched."""
    lanes = ir.Constant(I32X16, [ir.Constant(I32, lane) for lane in range(LANES)])
    mask = builder.icmp_signed("<", lanes, spread(builder, builder.trunc(count, I32)))
    place = builder.inttoptr(address, I16X16.as_pointer())
    kind = ir.FunctionType(I16X16, [place.type, I32, mask.type, I16X16])
    load = cgutils.get_or_insert_function(builder.module, kind, "llvm.masked.load.v16i16.p0")
    bits = builder.call(load, [place, I32(2), mask, constant(0, I16X16)])
    return builder.fpext(builder.bitcast(bits, F16X16), F32X16)


load_f16 = operation(vector, types.int64, types.int64)(halves)


@operation(vector, types.int64)
def load_bf16(builder: Any, address: Any) -> Any:
    return widened(builder, address)


def nibbles(builder: Any, address: Any) -> tuple[Any, Any]:
    """The 32 codes of 4 bits at an address, as two vectors of 16 x i32: the even ones and the odd ones."""
    both = builder.zext(read(builder, address, I8X16, 1), I32X16)
    return builder.and_(both, constant(15, I32X16)), builder.lshr(both, constant(4, I32X16))


def bytes_(builder: Any, address: Any) -> tuple[Any, Any]:
    """The 32 codes of 8 bits at an address, as `nibbles`."""
    wide = builder.sext(read(builder, address, I8X32, 1), ir.VectorType(I32, 32))
    return shuffled(builder, wide, wide, range(0, 32, 2)), shuffled(builder, wide, wide, range(1, 32, 2))


def floats(builder: Any, address: Any, bits: int, signed: Any) -> tuple[Any, Any]:
    """What 32 codes stand for, as two vectors of float32: the even ones and the odd ones."""
    if bits == 8:
        even, odd = bytes_(builder, address)
        return builder.sitofp(even, F32X16), builder.sitofp(odd, F32X16)
    zero = builder.select(signed, constant(8, I32X16), constant(0, I32X16))
    even, odd = nibbles(builder, address)
    return builder.sitofp(builder.sub(even, zero), F32X16), builder.sitofp(builder.sub(odd, zero), F32X16)


def bfloats(builder: Any, address: Any, bits: int, signed: Any) -> Any:
    """What 32 codes stand for, as bfloat16, in order."""
    if bits == 8:
        codes = builder.sitofp(read(builder, address, I8X32, 1), ir.VectorType(F32, 32))
        return builder.fptrunc(codes, BF16X32)
    both = builder.zext(read(builder, address, I8X16, 1), I32X16)
    pair = builder.or_(both, builder.shl(both, constant(12, I32X16)))
    index = builder.bitcast(builder.and_(pair, constant(0x000F000F, I32X16)), I16X32)
    table = builder.select(signed, SIGNED_4, UNSIGNED_4)
    return builder.bitcast(call(builder, "llvm.x86.avx512.permvar.hi.512", I16X32, table, index), BF16X32)


def spread_scales(builder: Any, scales: Any, group: int) -> Any:
    """The scale of every lane of a block whose scales lie at an address as float32: one, or one for each half."""
    first = spread(builder, read(builder, scales, F32, 4))
    if group == 32:
        return first
    second = spread(builder, read(builder, builder.add(scales, I64(4)), F32, 4))
    return builder.select(FIRST_HALF, first, second)


def product_tile(rows: int, outs: int, kinds: Sequence[int], half: bool) -> Any:
    """A function that stores the products of `outs` weight rows, of some `kinds`, with `rows` rows of x.

    (x, x_stride, weight, weight_stride, groups, kind, minima, sums, sums_stride, out): out[r, o] = x[r] . weight[o],
    contiguous float32. Strides in bytes. x: bfloat16 (`half`), or float32 with the even columns of each 32 before the
    odd ones. weight: packed rows. kind: an index of KINDS. minima: whether the rows hold any; sums: of x over each
    group, float32, which they multiply.
    """

    def emit(
        builder: Any, index: int, x: list[Any], weight: list[Any], groups: Any, minima: Any, sums: list[Any]
    ) -> list[Any]:
        bits, group = KINDS[index]
        totals = [[registers(builder, constant(0.0, F32X16)) for _ in weight] for _ in x]
        scales = [cgutils.alloca_once(builder, F32X16) for _ in weight]
        per_row = builder.mul(groups, builder.select(minima, I64(4), I64(2)))
        codes = [builder.add(row, per_row) for row in weight]
        with cgutils.for_range_slice(builder, I64(0), groups, I64(LANES), I64) as (base, _):
            left = builder.sub(groups, base)
            count = builder.select(builder.icmp_signed("<", left, I64(LANES)), left, I64(LANES))
            for row, scale in zip(weight, scales, strict=True):
                builder.store(halves(builder, at(builder, row, I64(2), base), count), scale)
            with builder.if_then(minima):
                for o, row in enumerate(weight):
                    least = halves(builder, at(builder, row, I64(2), builder.add(groups, base)), count)
                    for r, mine in enumerate(sums):
                        over = read(builder, at(builder, mine, I64(4), base), F32X16, 4)
                        _grow(builder, totals[r][o], least, over)
            block = builder.udiv(base, I64(32 // group))
            with cgutils.for_range(builder, builder.udiv(count, I64(32 // group))) as loop:
                here = builder.add(block, loop.index)
                inputs = [_operands(builder, at(builder, row, I64(64 if half else 128), here), half) for row in x]
                for o, row in enumerate(codes):
                    place = builder.ptrtoint(scales[o], I64)
                    scale = spread_scales(builder, at(builder, place, I64(128 // group), loop.index), group)
                    place = at(builder, row, I64(4 * bits), here)
                    values = (bfloats if half else floats)(builder, place, bits, builder.not_(minima))
                    for r, operands in enumerate(inputs):
                        dot = (_dot_half if half else _dot_float)(builder, operands, values)
                        _grow(builder, totals[r][o], dot, scale)
        return [total for row in totals for total in row]

    @operation(types.void, *(types.int64,) * 6, types.boolean, *(types.int64,) * 3)
    def tile(
        builder: Any, x: Any, x_stride: Any, weight: Any, weight_stride: Any, groups: Any, kind: Any, minima: Any,
        sums: Any, sums_stride: Any, out: Any,
    ) -> None:  # fmt: skip
        x = [at(builder, x, x_stride, I64(r)) for r in range(rows)]
        sums = [at(builder, sums, sums_stride, I64(r)) for r in range(rows)]
        weight = [at(builder, weight, weight_stride, I64(o)) for o in range(outs)]
        minima = builder.trunc(minima, ir.IntType(1))
        for index in kinds:
            with builder.if_then(builder.icmp_signed("==", kind, I64(index))):
                totals = [builder.load(total) for total in emit(builder, index, x, weight, groups, minima, sums)]
                if len(totals) == LANES:
                    write(builder, out, sums_of_sixteen(builder, totals), 4)
                    continue
                for i, total in enumerate(totals):
                    write(builder, builder.add(out, I64(4 * i)), emit_sum(builder, total), 4)

    return tile


def _grow(builder: Any, total: Any, a: Any, b: Any) -> None:
    builder.store(call(builder, "llvm.fma.v16f32", F32X16, a, b, builder.load(total)), total)


def _operands(builder: Any, x: Any, half: bool) -> Any:
    """32 columns of a row of x: one vector, or the even and the odd ones."""
    if half:
        return read(builder, x, BF16X32, 2)
    return [read(builder, builder.add(x, I64(64 * side)), F32X16, 4) for side in range(2)]


def _dot_half(builder: Any, x: Any, values: Any) -> Any:
    return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", F32X16, constant(0.0, F32X16), values, x)


def _dot_float(builder: Any, x: Any, values: tuple[Any, Any]) -> Any:
    return call(builder, "llvm.fma.v16f32", F32X16, values[1], x[1], builder.fmul(values[0], x[0]))


@operation(types.void, *(types.int64,) * 4, types.boolean, types.int64, types.boolean)
def expand_block(
    builder: Any, codes: Any, scales: Any, minima: Any, kind: Any, signed: Any, target: Any, half: Any
) -> None:
    """Write the 32 values of a block, code * scale + minimum, in order, as bfloat16 (`half`) or float32.

    scales, minima: float32, one per group; kind: as in `product_tile`; signed: codes of 4 bits stand for -8 .. 7, else
    for 0 .. 15.
    """
    for index, (bits, group) in enumerate(KINDS):
        with builder.if_then(builder.icmp_signed("==", kind, I64(index))):
            scale, least = spread_scales(builder, scales, group), spread_scales(builder, minima, group)
            codes_ = floats(builder, codes, bits, builder.trunc(signed, ir.IntType(1)))
            even, odd = (call(builder, "llvm.fma.v16f32", F32X16, code, scale, least) for code in codes_)
            order = [lane for i in range(LANES) for lane in (i, LANES + i)]
            with builder.if_else(builder.trunc(half, ir.IntType(1))) as (then, otherwise):
                with then:
                    low, high = (narrowed(builder, each, I32X16) for each in (even, odd))
                    write(builder, target, builder.or_(low, builder.shl(high, constant(16, I32X16))), 2)
                with otherwise:
                    write(builder, target, shuffled(builder, even, odd, order), 4)
