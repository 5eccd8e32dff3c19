"""Sixteen-lane vectors for selecting: loads and stores that stop at an end, comparisons as bits, logarithms."""

from typing import Any

from llvmlite import ir
from numba.core import types

from winnow.kernels.simd.build import call, constant, operation, spread
from winnow.kernels.simd.kinds import F32, F32X16, I32, I32X16, I64, LANES, vector


def first_lanes(builder: Any, count: Any) -> Any:
    """<16 x i1>, true in the first `count` lanes; count is an i64, above 0."""
    lanes = ir.Constant(I32X16, [I32(lane) for lane in range(LANES)])
    return builder.icmp_signed("<", lanes, spread(builder, builder.trunc(count, I32)))


@operation(vector, types.int64, types.int64, types.float32)
def load_part(builder: Any, address: Any, left: Any, other: Any) -> Any:
    """The float32 at `address`; `other` in the lanes from `left` on, whose memory is not touched."""
    place = builder.inttoptr(address, F32X16.as_pointer())
    return call(
        builder, "llvm.masked.load.v16f32.p0", F32X16, place, I32(4), first_lanes(builder, left), spread(builder, other)
    )


@operation(types.void, types.int64, types.int64, vector)
def store_part(builder: Any, address: Any, left: Any, value: Any) -> None:
    """Store the first `left` lanes."""
    place = builder.inttoptr(address, F32X16.as_pointer())
    kind = ir.VoidType()
    call(builder, "llvm.masked.store.v16f32.p0", kind, value, place, I32(4), first_lanes(builder, left))


@operation(vector, vector, vector)
def sub(builder: Any, a: Any, b: Any) -> Any:
    return builder.fsub(a, b)


@operation(vector, vector)
def log(builder: Any, x: Any) -> Any:
    """The natural logarithm to 1 ulp, for x from 2**-126 on; below, 0 included, something near -88.

    The mantissa, moved to sqrt(1/2) .. sqrt(2), goes through the polynomial of Cephes' logf.
    """
    fused = lambda a, b, c: call(builder, "llvm.fma.v16f32", F32X16, a, b, c)  # noqa: E731
    fill = lambda value: constant(value, F32X16)  # noqa: E731
    bits = builder.bitcast(x, I32X16)
    exponent = builder.sub(builder.lshr(bits, constant(23, I32X16)), constant(126, I32X16))
    half = builder.or_(builder.and_(bits, constant(0x7FFFFF, I32X16)), constant(0x3F000000, I32X16))
    mantissa = builder.bitcast(half, F32X16)  # 0.5 .. 1
    small = builder.fcmp_ordered("<", mantissa, fill(0.707106781186547524))
    exponent = builder.sitofp(builder.add(exponent, builder.sext(small, I32X16)), F32X16)
    x = builder.fsub(builder.fadd(mantissa, builder.select(small, mantissa, fill(0.0))), fill(1.0))
    square = builder.fmul(x, x)
    power = fill(7.0376836292e-2)
    for coefficient in (
        -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1, 2.0000714765e-1,
        -2.4999993993e-1, 3.3333331174e-1,
    ):  # fmt: skip
        power = fused(power, x, fill(coefficient))
    y = fused(exponent, fill(-2.12194440e-4), builder.fmul(builder.fmul(x, square), power))
    y = fused(square, fill(-0.5), y)
    return fused(exponent, fill(0.693359375), builder.fadd(x, y))


def bits_where(builder: Any, comparison: str, a: Any, b: Any) -> Any:
    """An i64 whose bit i says whether the comparison holds in lane i; it does not where a lane is NaN."""
    holds = builder.bitcast(builder.fcmp_ordered(comparison, a, b), ir.IntType(LANES))
    return builder.zext(holds, I64)


@operation(types.int64, vector, vector)
def at_least(builder: Any, a: Any, b: Any) -> Any:
    return bits_where(builder, ">=", a, b)


@operation(types.int64, vector, vector)
def above(builder: Any, a: Any, b: Any) -> Any:
    return bits_where(builder, ">", a, b)


@operation(types.int64, types.int64)
def number_of_bits(builder: Any, bits: Any) -> Any:
    return builder.ctpop(bits)


@operation(types.int64, types.int64)
def lowest_bit(builder: Any, bits: Any) -> Any:
    """The index of the lowest bit that is set; one must be."""
    return builder.cttz(bits, ir.IntType(1)(1))


@operation(types.int64, types.float32)
def bits_of(builder: Any, value: Any) -> Any:
    """The bits of a float32, as a signed number."""
    return builder.sext(builder.bitcast(value, I32), I64)


@operation(types.float32, types.int64)
def float_of(builder: Any, bits: Any) -> Any:
    """The float32 with these bits, the upper half of which is ignored."""
    return builder.bitcast(builder.trunc(bits, I32), F32)
