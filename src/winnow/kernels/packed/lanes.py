"""What the packed kernels need of vectors beyond `winnow.kernels.simd`: codes and half-precision scales as lanes.

A block is 32 codes: `lane i` stands for the codes 2i and 2i + 1 of it, as the bfloat16 dot product takes them.
"""

from collections.abc import Sequence
from typing import Any

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
I8X32 = ir.VectorType(I8, 32)
FIRST_HALF = ir.Constant(ir.VectorType(ir.IntType(1), LANES), [ir.Constant(ir.IntType(1), i < 8) for i in range(LANES)])
ABOVE = 16  # what `bfloats_4` adds to codes


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


def floats(builder: Any, address: Any, bits: int, upper: Any, zero: Any) -> tuple[Any, Any]:
    """What 32 codes stand for, as two vectors of float32: the even ones and the odd ones.

    upper: of 4 bits, whether they are in the upper halves of the bytes at `address`; zero: an i32, see `weight.py`.
    """
    stored, wide = read(builder, address, I8X32, 1), ir.VectorType(I32, 32)
    if bits == 8:
        codes = builder.sext(stored, wide)
    else:
        shift = builder.select(upper, constant(4, I8X32), constant(0, I8X32))
        half = builder.and_(builder.lshr(stored, shift), constant(15, I8X32))
        codes = builder.sub(builder.zext(half, wide), spread(builder, zero, 32))
    sides = (shuffled(builder, codes, codes, range(side, 32, 2)) for side in range(2))
    even, odd = (builder.sitofp(side, F32X16) for side in sides)
    return even, odd


def bfloats_8(builder: Any, address: Any) -> Any:
    """What 32 codes of 8 bits stand for, as bfloat16, in order."""
    codes = builder.sitofp(read(builder, address, I8X32, 1), ir.VectorType(F32, 32))
    return builder.fptrunc(codes, BF16X32)


def bfloats_4(builder: Any, address: Any) -> list[Any]:
    """The two blocks of a pair of 4 bits, in order, each code `ABOVE` too high.

    As the upper four bits of the mantissa of 16, which count ones, codes are numbers without a conversion.
    """
    both = builder.zext(read(builder, address, I8X32, 1), I16X32)
    shifted = builder.shl(both, constant(3, I16X32)), builder.lshr(both, constant(1, I16X32))
    mantissas = (builder.and_(half, constant(0x78, I16X32)) for half in shifted)
    return [builder.bitcast(builder.or_(each, constant(0x4180, I16X32)), BF16X32) for each in mantissas]


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
        paired = half and bits == 4
        # Where there are few sums, a block and the next go to two of them, so that neither waits for the other.
        ways = 2 if paired and rows * outs < 4 else 1
        totals = [[[registers(builder, constant(0.0, F32X16)) for _ in range(ways)] for _ in weight] for _ in x]
        scales = [cgutils.alloca_once(builder, F32X16) for _ in weight]
        zero = builder.select(minima, I32(0), I32(8 if bits == 4 else 0))
        codes = [builder.add(row, builder.mul(groups, builder.select(minima, I64(4), I64(2)))) for row in weight]

        def add(here: Any, in_base: Any, values: list[Any], side: int = 0) -> None:
            """Add block `here`, the `in_base`th of those whose scales are loaded: values, of each weight row."""
            inputs = [_operands(builder, at(builder, row, I64(64 if half else 128), here), half) for row in x]
            for o, value in enumerate(values):
                place = at(builder, builder.ptrtoint(scales[o], I64), I64(128 // group), in_base)
                scale = spread_scales(builder, place, group)
                for r, operands in enumerate(inputs):
                    dot = (_dot_half if half else _dot_float)(builder, operands, value)
                    _grow(builder, totals[r][o][side % ways], dot, scale)

        with cgutils.for_range_slice(builder, I64(0), groups, I64(LANES), I64) as (base, _):
            left = builder.sub(groups, base)
            count = builder.select(builder.icmp_signed("<", left, I64(LANES)), left, I64(LANES))
            for o, row in enumerate(weight):
                scale = halves(builder, at(builder, row, I64(2), base), count)
                builder.store(scale, scales[o])
                _add_minima(builder, row, base, count, groups, minima, (scale, zero) if paired else None,
                            [totals[r][o][0] for r in range(rows)], sums)  # fmt: skip
            block, blocks = (builder.udiv(each, I64(32 // group)) for each in (base, count))
            if not paired:
                with cgutils.for_range(builder, blocks) as loop:
                    here = builder.add(block, loop.index)
                    add(here, loop.index, [_values(builder, row, bits, here, zero, half) for row in codes])
            else:
                with cgutils.for_range(builder, builder.udiv(blocks, I64(2))) as loop:
                    first = builder.shl(loop.index, I64(1))
                    here = builder.add(block, first)
                    pairs = [bfloats_4(builder, at(builder, row, I64(16), here)) for row in codes]
                    for side in range(2):
                        add(
                            builder.add(here, I64(side)),
                            builder.add(first, I64(side)),
                            [pair[side] for pair in pairs],
                            side,
                        )
                with builder.if_then(builder.trunc(blocks, ir.IntType(1))):  # half a pair at the end
                    last = builder.sub(blocks, I64(1))
                    here = builder.add(block, last)
                    add(here, last, [bfloats_4(builder, at(builder, row, I64(16), here))[0] for row in codes])
        return [_sum(builder, ways_) for row in totals for ways_ in row]

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
                totals = emit(builder, index, x, weight, groups, minima, sums)
                if len(totals) == LANES:
                    write(builder, out, sums_of_sixteen(builder, totals), 4)
                    continue
                for i, total in enumerate(totals):
                    write(builder, builder.add(out, I64(4 * i)), emit_sum(builder, total), 4)

    return tile


def _sum(builder: Any, parts: list[Any]) -> Any:
    total = builder.load(parts[0])
    for part in parts[1:]:
        total = builder.fadd(total, builder.load(part))
    return total


def _values(builder: Any, codes: Any, bits: int, block: Any, zero: Any, half: bool) -> Any:
    """A block's values as the dot product takes them."""
    if bits == 8:
        place = at(builder, codes, I64(32), block)
        return bfloats_8(builder, place) if half else floats(builder, place, bits, None, zero)
    place = at(builder, codes, I64(32), builder.lshr(block, I64(1)))
    return floats(builder, place, bits, builder.trunc(block, ir.IntType(1)), zero)


def _add_minima(
    builder: Any, row: Any, base: Any, count: Any, groups: Any, minima: Any, above: tuple[Any, Any] | None,
    totals: list[Any], sums: list[Any],
) -> None:  # fmt: skip
    """Add the sums of x over the groups times their minima, if the row has any.

    above: their scales and zero, where codes are `ABOVE` and zero too high, which is taken off here.
    """

    def add(factor: Any) -> None:
        for total, mine in zip(totals, sums, strict=True):
            _grow(builder, total, factor, read(builder, at(builder, mine, I64(4), base), F32X16, 4))

    with builder.if_then(minima):
        add(halves(builder, at(builder, row, I64(2), builder.add(groups, base)), count))
    if above is not None:
        scale, zero = above
        lift = builder.fneg(builder.sitofp(builder.add(zero, I32(ABOVE)), F32))
        add(builder.fmul(scale, spread(builder, lift)))


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


@operation(types.void, *(types.int64,) * 5, types.boolean, types.int64, types.boolean)
def expand_block(
    builder: Any, codes: Any, block: Any, scales: Any, minima: Any, kind: Any, signed: Any, target: Any, half: Any
) -> None:
    """Write the 32 values of a block of a row, code * scale + minimum, in order, as bfloat16 (`half`) or float32.

    codes: of the row; scales, minima: float32, one per group of the block; kind: as in `product_tile`; signed: codes of
    4 bits stand for -8 .. 7, else for 0 .. 15.
    """
    for index, (bits, group) in enumerate(KINDS):
        with builder.if_then(builder.icmp_signed("==", kind, I64(index))):
            scale, least = spread_scales(builder, scales, group), spread_scales(builder, minima, group)
            zero = builder.select(builder.trunc(signed, ir.IntType(1)), I32(8), I32(0))
            values = _values(builder, codes, bits, block, zero, half=False)
            even, odd = (call(builder, "llvm.fma.v16f32", F32X16, value, scale, least) for value in values)
            order = [lane for i in range(LANES) for lane in (i, LANES + i)]
            with builder.if_else(builder.trunc(half, ir.IntType(1))) as (then, otherwise):
                with then:
                    low, high = (narrowed(builder, each, I32X16) for each in (even, odd))
                    write(builder, target, builder.or_(low, builder.shl(high, constant(16, I32X16))), 2)
                with otherwise:
                    write(builder, target, shuffled(builder, even, odd, order), 4)
