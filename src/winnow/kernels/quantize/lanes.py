"""What the kernels need of vectors to read codes: sixteen at a time become float32, and never lie in memory as such.

Sixteen bytes have the codes of sixteen channels once for every plane, from the lowest bits up (see `quantize`).
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from winnow.kernels.simd import (
    F32,
    F32X16,
    I8,
    I32,
    I32X16,
    I64,
    LANES,
    at,
    call,
    constant,
    emit_sum,
    operation,
    read,
    registers,
    shuffled,
    spread,
    sums_of_sixteen,
    vector,
    write,
)

I8X16 = ir.VectorType(I8, LANES)
F16X16 = ir.VectorType(ir.HalfType(), LANES)


def wide(builder: Any, address: Any) -> Any:
    """Sixteen bytes as integers of 32 bits."""
    return builder.zext(read(builder, address, I8X16, 1), I32X16)


def plane(builder: Any, stored: Any, index: int, bits: int) -> Any:
    """The codes of one plane, as float32."""
    shifted = builder.lshr(stored, constant(index * bits, I32X16)) if index else stored
    last = (index + 1) * bits == 8
    return builder.sitofp(shifted if last else builder.and_(shifted, constant(2**bits - 1, I32X16)), F32X16)


@operation(vector, types.int64, types.int64, types.int64)
def load_codes(builder: Any, address: Any, shift: Any, mask: Any) -> Any:
    """Sixteen codes that lie `shift` bits up in their bytes."""
    shifted = builder.lshr(wide(builder, address), spread(builder, builder.trunc(shift, I32)))
    return builder.sitofp(builder.and_(shifted, spread(builder, builder.trunc(mask, I32))), F32X16)


@operation(vector, types.int64)
def load_halves(builder: Any, address: Any) -> Any:
    """Sixteen float16 as float32."""
    return builder.fpext(read(builder, address, F16X16, 2), F32X16)


@operation(types.float32, types.int64)
def read_half(builder: Any, address: Any) -> Any:
    return builder.fpext(read(builder, address, ir.HalfType(), 2), F32)


def dot_codes(queries: int, units: int, bits: int) -> Any:
    """A function that stores queries x units products of float32 vectors with codes; the sums stay in registers.

    (q, q_stride, planes, codes, size, blocks, out, out_stride): out[i, j] = q[i] . codes[j] over `blocks` times sixteen
    bytes, every plane of which meets values of q that are `planes` bytes apart; codes[j] `size` bytes apart, out[i]
    contiguous float32.
    """

    @operation(types.void, *(types.int64,) * 8)
    def tile(
        builder: Any, q: Any, q_stride: Any, planes: Any, codes: Any, size: Any, blocks: Any, out: Any, out_stride: Any
    ) -> None:
        sums = [registers(builder, constant(0.0, F32X16)) for _ in range(queries * units)]
        starts = [at(builder, codes, size, I64(j)) for j in range(units)]
        vectors = [at(builder, q, q_stride, I64(i)) for i in range(queries)]
        with cgutils.for_range(builder, blocks) as loop:
            mine = [
                [
                    read(builder, at(builder, at(builder, each, planes, I64(p)), I64(64), loop.index), F32X16, 4)
                    for p in range(8 // bits)
                ]
                for each in vectors
            ]
            for j, start in enumerate(starts):
                stored = wide(builder, at(builder, start, I64(LANES), loop.index))
                for p in range(8 // bits):
                    lanes = plane(builder, stored, p, bits)
                    for i in range(queries):
                        total = sums[i * units + j]
                        grown = call(builder, "llvm.fma.v16f32", F32X16, mine[i][p], lanes, builder.load(total))
                        builder.store(grown, total)
        loaded = [builder.load(total) for total in sums]
        if len(loaded) == LANES:
            totals = sums_of_sixteen(builder, loaded)
            for i in range(queries):
                row = shuffled(builder, totals, totals, range(i * units, (i + 1) * units))
                write(builder, at(builder, out, out_stride, I64(i)), row, 4)
            return
        for i in range(queries):
            for j in range(units):
                place = builder.add(at(builder, out, out_stride, I64(i)), I64(4 * j))
                write(builder, place, emit_sum(builder, loaded[i * units + j]), 4)

    return tile


def weigh_codes(queries: int, bits: int) -> Any:
    """A function that weighs the codes in sixteen columns of bytes and sums them up over units, in registers.

    (first, second, third, fourth, stride, codes, size, count, out): out[i, p] = sum over j < count of weights_p[i, j] *
    codes[j] in plane p, the weights of the planes being float32 at the first addresses, as many as there are planes,
    `stride` bytes from one i to the next; codes[j] `size` bytes apart; out contiguous, sixteen float32 each.
    """
    planes = 8 // bits

    @operation(types.void, *(types.int64,) * 9)
    def tile(
        builder: Any, first: Any, second: Any, third: Any, fourth: Any, stride: Any, codes: Any, size: Any, count: Any,
        out: Any,
    ) -> None:  # fmt: skip
        weights = [first, second, third, fourth][:planes]
        sums = [registers(builder, constant(0.0, F32X16)) for _ in range(queries * planes)]
        with cgutils.for_range(builder, count) as loop:
            stored = wide(builder, at(builder, codes, size, loop.index))
            for p, each in enumerate(weights):
                lanes = plane(builder, stored, p, bits)
                for i in range(queries):
                    place = at(builder, at(builder, each, stride, I64(i)), I64(4), loop.index)
                    total = sums[i * planes + p]
                    factor = spread(builder, read(builder, place, F32, 4))
                    grown = call(builder, "llvm.fma.v16f32", F32X16, factor, lanes, builder.load(total))
                    builder.store(grown, total)
        for number, total in enumerate(sums):
            write(builder, builder.add(out, I64(64 * number)), builder.load(total), 4)

    return tile
