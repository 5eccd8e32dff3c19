"""What an operation on vectors is made of."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

from winnow.kernels.simd.kinds import F32, F32X16, I8, I16X16, I32, I32X16, I64, LANES


def operation(result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: `emit(builder, *values) -> value` becomes a function Numba code can call, with these Numba types."""

    def decorate(emit: Callable[..., Any]) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            value = emit(builder, *values)
            return context.get_dummy_value() if value is None else value

        def typing(typingctx: Any, *_: Any) -> Any:
            return result(*arguments), codegen

        names = ["typingctx", *list(inspect.signature(emit).parameters)[1:]]
        typing.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        )
        typing.__name__, typing.__doc__ = emit.__name__, emit.__doc__
        return intrinsic(typing)

    return decorate


def call(builder: Any, name: str, result: Any, *values: Any, fastmath: tuple[str, ...] = ()) -> Any:
    """Call the LLVM intrinsic `name`; the types are those of `values`."""
    kind = ir.FunctionType(result, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values, fastmath=fastmath)


def read(builder: Any, address: Any, kind: Any, align: int) -> Any:
    loaded = builder.load(builder.inttoptr(address, kind.as_pointer()))
    loaded.align = align
    return loaded


def write(builder: Any, address: Any, value: Any, align: int) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = align


def prefetch(builder: Any, address: Any, lines: int) -> None:
    """Ask for `lines` cache lines from `address` on, into the second-level cache; any address will do, none faults."""
    for line in range(lines):
        place = builder.inttoptr(builder.add(address, I64(64 * line)), I8.as_pointer())
        call(builder, "llvm.prefetch.p0", ir.VoidType(), place, I32(0), I32(2), I32(1))


def at(builder: Any, base: Any, stride: Any, index: Any) -> Any:
    """base + stride * index"""
    return builder.add(base, builder.mul(stride, index))


def constant(value: float, kind: Any = F32) -> Any:
    """The scalar `value`, or a vector full of it."""
    if isinstance(kind, ir.VectorType):
        return ir.Constant(kind, [ir.Constant(kind.element, value)] * kind.count)
    return ir.Constant(kind, value)


def spread(builder: Any, scalar: Any, lanes: int = LANES) -> Any:
    """A vector with `scalar` in every lane."""
    empty = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    one = builder.insert_element(empty, scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, empty, constant(0, ir.VectorType(I32, lanes)))


def widened(builder: Any, address: Any) -> Any:
    """Sixteen bfloat16 as float32: a bfloat16 is the upper half of the float32."""
    wide = builder.zext(read(builder, address, I16X16, 2), I32X16)
    return builder.bitcast(builder.shl(wide, constant(16, I32X16)), F32X16)


def halves(builder: Any, words: Any) -> tuple[Any, Any]:
    """The two bfloat16 of each word, the lower one first, as float32: of one word, or of sixteen."""
    kind = F32X16 if isinstance(words.type, ir.VectorType) else F32
    lower = builder.shl(words, constant(16, words.type))
    upper = builder.and_(words, constant(0xFFFF0000, words.type))
    return builder.bitcast(lower, kind), builder.bitcast(upper, kind)


def narrowed(builder: Any, value: Any, kind: Any) -> Any:
    """float32 as bfloat16 bits in the low half of an integer of `kind`, rounded to nearest even; NaN stays NaN."""
    bits = builder.bitcast(value, kind)
    odd = builder.and_(builder.lshr(bits, constant(16, kind)), constant(1, kind))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, constant(0x7FFF, kind))), constant(16, kind))
    return builder.select(builder.fcmp_unordered("uno", value, value), constant(0x7FC0, kind), rounded)


def shuffled(builder: Any, a: Any, b: Any, lanes: Sequence[int]) -> Any:
    """The lanes of `a` (from 0) and `b` (from a's length on) in the order given; one instruction where there is one."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(lanes)), [I32(lane) for lane in lanes]))


def registers(builder: Any, value: Any) -> Any:
    """A variable that LLVM keeps in a register, set to `value`."""
    variable = cgutils.alloca_once(builder, value.type)
    builder.store(value, variable)
    return variable
