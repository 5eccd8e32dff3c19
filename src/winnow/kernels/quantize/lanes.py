"""What kernels that read codes need of vectors: sixteen sums over codes at once, which never become floats in memory.

A chunk is 64 bytes: sixteen lanes of four codes in every plane (see `quantize`). Codes meet integers of fifteen bits,
as two of eight, in the dot product that CPUs have for them; without one, or for float32, they become floats.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from winnow.kernels.simd.build import at, call, constant, operation, prefetch, read, registers, spread, write
from winnow.kernels.simd.kinds import F32, F32X16, HAS_BYTE_DOT, I8, I32, I32X16, I64, LANES, vector

I8X16 = ir.VectorType(I8, LANES)
BYTE_DOT = "llvm.x86.avx512.vpdpbusd.512"
CHUNK = 64  # bytes: sixteen lanes, units of a block or channels, of four codes in every plane
UPPER = 7  # bits by which the upper of two integers is shifted
MOST = (1 << 2 * UPPER) - 1  # of what two integers hold


@operation(types.float32, types.int64)
def read_half(builder: Any, address: Any) -> Any:
    return builder.fpext(read(builder, address, ir.HalfType(), 2), F32)


@operation(types.int64, types.int64)
def read_byte(builder: Any, address: Any) -> Any:
    return builder.zext(read(builder, address, I8, 1), I64)


@operation(types.void, types.int64, types.int64, vector)
def store_levels(builder: Any, upper: Any, lower: Any, value: Any) -> None:
    """Sixteen whole numbers of at most MOST as two signed bytes each, `upper * 128 + lower`, the lower from 0 on."""
    whole = builder.fptosi(call(builder, "llvm.rint.v16f32", F32X16, value), I32X16)
    high, low = builder.ashr(whole, constant(UPPER, I32X16)), builder.and_(whole, constant(127, I32X16))
    for address, each in ((upper, high), (lower, low)):
        write(builder, address, builder.trunc(each, I8X16), 1)


def codes_of(builder: Any, address: Any, shift: Any, bits: Any) -> Any:
    """The codes of the plane of a chunk that begins `shift` bits up, four bytes to a lane."""
    one = constant(1, I32)
    mask = builder.mul(builder.sub(builder.shl(one, builder.trunc(bits, I32)), one), I32(0x01010101))
    stored = read(builder, address, I32X16, 1)
    return builder.and_(builder.lshr(stored, spread(builder, builder.trunc(shift, I32))), spread(builder, mask))


def floats_of(builder: Any, lanes: Any, shift: Any, bits: Any) -> Any:
    """The codes that begin `shift` bits up in sixteen integers, as float32."""
    one = constant(1, I32)
    mask = spread(builder, builder.sub(builder.shl(one, builder.trunc(bits, I32)), one))
    up = spread(builder, builder.trunc(shift, I32))
    return builder.sitofp(builder.and_(builder.lshr(lanes, up), mask), F32X16)


@operation(vector, types.int64, types.int64, types.int64)
def channels_of_value(builder: Any, chunk: Any, shift: Any, bits: Any) -> Any:
    """Sixteen channels of one unit's value: the code of every lane, float32. shift: of its byte and its plane."""
    return floats_of(builder, read(builder, chunk, I32X16, 1), shift, bits)


@operation(vector, types.int64, types.int64, types.int64)
def channels_of_key(builder: Any, place: Any, shift: Any, bits: Any) -> Any:
    """Sixteen channels of one unit's key, float32: four bytes each of the chunk at `place` and the three behind it."""
    four = ir.Constant(ir.VectorType(I32, 4), ir.Undefined)
    for chunk in range(4):
        part = read(builder, builder.add(place, I64(CHUNK * chunk)), I32, 1)
        four = builder.insert_element(four, part, I32(chunk))
    return floats_of(builder, builder.zext(builder.bitcast(four, I8X16), I32X16), shift, bits)


def sums_in_bytes(vectors: int, blocks: int) -> Any:
    """A function that adds `blocks` times sixteen lanes of sums over codes to `vectors` rows.

    (codes, beside, stride, shift, bits, planes, x, x_stride, level, step, further, count, factors, lifts, out,
    out_stride, ahead): out[i, b, lane] += lifts[i] + factors[i] * sum over k < count, p < planes, j < 4 of
    codes[b, k, p, lane, j] * x[i, k, p, j]. Blocks lie `beside` bytes apart, chunks of a block `stride`, their first
    plane in the bits from `shift` on. x: signed bytes, the upper ones and, `level` bytes on, the lower ones; those of
    i `x_stride` bytes from the last, those of k `step`, those of p `further`. factors and lifts: float32. Of every
    chunk the line `ahead` bytes on is asked for: chunks of values lie in strides, and pieces of keys between others,
    so that no hardware foresees them. Two blocks at once, since few sums would wait for one another.
    """

    @operation(types.void, *(types.int64,) * 17)
    def tile(
        builder: Any, codes: Any, beside: Any, stride: Any, shift: Any, bits: Any, planes: Any, x: Any, x_stride: Any,
        level: Any, step: Any, further: Any, count: Any, factors: Any, lifts: Any, out: Any, out_stride: Any,
        ahead: Any,
    ) -> None:  # fmt: skip
        if not HAS_BYTE_DOT:  # nobody calls it
            return
        sums = {
            (i, b, side): registers(builder, constant(0, I32X16))
            for i in range(vectors) for b in range(blocks) for side in range(2)
        }  # fmt: skip
        starts = [at(builder, codes, beside, I64(b)) for b in range(blocks)]
        with cgutils.for_range(builder, planes) as plane:
            first, up = at(builder, x, further, plane.index), at(builder, shift, bits, plane.index)
            begins = builder.icmp_signed("==", plane.index, I64(0))
            with cgutils.for_range(builder, count) as loop:
                chunks = [at(builder, start, stride, loop.index) for start in starts]
                with builder.if_then(begins, likely=True):
                    for chunk in chunks:
                        prefetch(builder, builder.add(chunk, ahead), 1)
                lanes = [codes_of(builder, chunk, up, bits) for chunk in chunks]
                place = at(builder, first, step, loop.index)
                for i in range(vectors):
                    upper = at(builder, place, x_stride, I64(i))
                    for side, address in enumerate((upper, builder.add(upper, level))):
                        four = spread(builder, read(builder, address, I32, 1))
                        for b in range(blocks):
                            total = sums[i, b, side]
                            grown = call(builder, BYTE_DOT, I32X16, builder.load(total), lanes[b], four)
                            builder.store(grown, total)
        for i in range(vectors):
            factor, lift = (read(builder, at(builder, each, I64(4), I64(i)), F32, 4) for each in (factors, lifts))
            for b in range(blocks):
                high, low = (builder.load(sums[i, b, side]) for side in range(2))
                added = builder.add(builder.shl(high, constant(UPPER, I32X16)), low)
                place = builder.add(at(builder, out, out_stride, I64(i)), I64(4 * LANES * b))
                before = builder.fadd(read(builder, place, F32X16, 4), spread(builder, lift))
                values = (builder.sitofp(added, F32X16), spread(builder, factor), before)
                write(builder, place, call(builder, "llvm.fma.v16f32", F32X16, *values), 4)

    return tile


@operation(types.void, *(types.int64,) * 9)
def sums_in_floats(
    builder: Any, codes: Any, stride: Any, shift: Any, bits: Any, x: Any, step: Any, count: Any, lift: Any, out: Any
) -> None:
    """The same for one vector of float32 and one plane: no factor."""
    sums = [registers(builder, constant(0.0, F32X16)) for _ in range(4)]
    with cgutils.for_range(builder, count) as loop:
        lanes = codes_of(builder, at(builder, codes, stride, loop.index), shift, bits)
        place = at(builder, x, step, loop.index)
        for j, total in enumerate(sums):
            shifted = builder.and_(builder.lshr(lanes, constant(8 * j, I32X16)), constant(255, I32X16))
            factor = spread(builder, read(builder, builder.add(place, I64(4 * j)), F32, 4))
            values = (factor, builder.sitofp(shifted, F32X16), builder.load(total))
            builder.store(call(builder, "llvm.fma.v16f32", F32X16, *values), total)
    total = builder.fadd(read(builder, out, F32X16, 4), spread(builder, read(builder, lift, F32, 4)))
    for each in sums:
        total = builder.fadd(total, builder.load(each))
    write(builder, out, total, 4)
