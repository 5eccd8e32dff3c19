"""What kernels load from addresses and store there: float32, bfloat16, integers; one, or sixteen lanes."""

from typing import Any

from llvmlite import ir
from numba.core import types

from winnow.kernels.simd.build import narrowed, operation, prefetch, read, widened, write
from winnow.kernels.simd.kinds import BF16X16, F32, F32X16, HAS_BF16_DOT, I8, I16, I16X16, I32, I32X16, I64, vector


@operation(vector, types.int64)
def load_f32(builder: Any, address: Any) -> Any:
    return read(builder, address, F32X16, 4)


@operation(vector, types.int64)
def load_bf16(builder: Any, address: Any) -> Any:
    return widened(builder, address)


@operation(types.void, types.int64)
def ask_for(builder: Any, address: Any) -> None:
    """Fetch a cache line that is soon read."""
    prefetch(builder, address, 1)


@operation(types.float32, types.int64)
def read_bf16(builder: Any, address: Any) -> Any:
    bits = builder.zext(read(builder, address, I16, 2), I32)
    return builder.bitcast(builder.shl(bits, ir.Constant(I32, 16)), F32)


@operation(types.void, types.int64, vector)
def store_f32(builder: Any, address: Any, value: Any) -> None:
    write(builder, address, value, 4)


@operation(types.float32, types.int64)
def read_f32(builder: Any, address: Any) -> Any:
    return read(builder, address, F32, 4)


@operation(types.boolean, types.int64)
def read_flag(builder: Any, address: Any) -> Any:
    """Whether the byte there is not 0."""
    return builder.icmp_unsigned("!=", read(builder, address, I8, 1), I8(0))


@operation(types.int64, types.int64)
def read_i64(builder: Any, address: Any) -> Any:
    return read(builder, address, I64, 8)


@operation(types.void, types.int64, types.int64)
def write_i64(builder: Any, address: Any, value: Any) -> None:
    write(builder, address, value, 8)


@operation(types.void, types.int64, types.float32)
def write_f32(builder: Any, address: Any, value: Any) -> None:
    write(builder, address, value, 4)


@operation(types.void, types.int64, types.float32)
def write_bf16(builder: Any, address: Any, value: Any) -> None:
    write(builder, address, builder.trunc(narrowed(builder, value, I32), I16), 2)


@operation(types.void, types.int64, vector)
def store_bf16(builder: Any, address: Any, value: Any) -> None:
    if HAS_BF16_DOT:
        write(builder, address, builder.fptrunc(value, BF16X16), 2)
        return
    write(builder, address, builder.trunc(narrowed(builder, value, I32X16), I16X16), 2)
