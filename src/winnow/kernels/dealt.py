"""Kernels whose parts are dealt to threads: C functions of one part each, and one parallel loop of Numba for them all.

Numba makes several functions of a parallel one and optimises in each of them, anew, all that it calls. With a loop in
each of the kernels that took half of the time of compiling them; so the only loop knows nothing of what it calls but
the address.
"""

import ctypes
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import cfunc, njit, prange, types
from numba.extending import intrinsic

from winnow.kernels.simd.build import operation, read
from winnow.kernels.simd.kinds import F32, I64

# Arguments lie one after the other, each on 8 bytes: integers, numbers, and what is true or false.
LETTERS: dict[str, tuple[Any, Any]] = {
    "i": (types.int64, ctypes.c_int64),
    "f": (types.float32, ctypes.c_double),
    "b": (types.boolean, ctypes.c_int64),
}


def _arguments(typingctx: Any, place: Any, kinds: Any) -> Any:
    """The arguments that lie at `place`; kinds: a letter of `LETTERS` for each, as the kernel was declared with."""
    letters = kinds.literal_value

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        found = []
        for at, letter in enumerate(letters):
            address = builder.add(values[0], I64(8 * at))
            if letter == "f":
                found.append(builder.fptrunc(read(builder, address, ir.DoubleType(), 8), F32))
                continue
            value = read(builder, address, I64, 8)
            found.append(value if letter == "i" else builder.icmp_unsigned("!=", value, I64(0)))
        return context.make_tuple(builder, signature.return_type, found)

    return types.Tuple([LETTERS[letter][0] for letter in letters])(types.int64, kinds), codegen


arguments: Any = intrinsic(prefer_literal=True)(_arguments)


@operation(types.void, types.int64, types.int64, types.int64, types.int64)
def enter(builder: Any, function: Any, part: Any, parts: Any, place: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [I64] * 3)
    builder.call(builder.inttoptr(function, kind.as_pointer()), [part, parts, place])


@njit(types.void(*(types.int64,) * 3), cache=True, parallel=True, nogil=True, error_model="numpy")
def deal(function: int, parts: int, place: int) -> None:
    """Call the C function at an address for every part."""
    for part in prange(parts):
        enter(function, part, parts, place)


class Kernel:
    """What Python calls as `kernel(parts, *arguments)`."""

    def __init__(self, body: Callable[[int, int, int], None], kinds: str) -> None:
        self.__doc__ = body.__doc__
        self._count = len(kinds)
        fields = [(f"_{at}", LETTERS[letter][1]) for at, letter in enumerate(kinds)]
        self._table: Any = type("Arguments", (ctypes.Structure,), {"_fields_": fields})
        # Kept, since its memory is that of the function at the address.
        self._compiled = cfunc(types.void(*(types.int64,) * 3), cache=True, error_model="numpy")(body)
        self._address: Any = self._compiled.address

    def __call__(self, parts: int, *arguments: int | float) -> None:
        if len(arguments) != self._count:
            raise TypeError(f"the kernel takes {self._count} arguments, not {len(arguments)}")
        table = self._table(*arguments)
        deal(self._address, parts, ctypes.addressof(table))


def kernel(kinds: str) -> Callable[[Callable[[int, int, int], None]], Kernel]:
    """Decorator: `body(part, parts, place)`, compiled here and now, becomes a kernel.

    kinds: of the arguments, which the body takes from `place` with `arguments(place, kinds)`.
    """
    return lambda body: Kernel(body, kinds)
