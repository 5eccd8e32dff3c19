"""The numbers and vectors of LLVM that kernels use, and which of this CPU's instructions they may."""

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import config, types
from numba.core.datamodel import models
from numba.extending import register_model

from winnow.kernels.launch import match_torch_threads

# Loading a compiled parallel kernel starts Numba's threads, and that must not change torch's thread count.
match_torch_threads()

LANES = 16
# Where Numba is told to compile for another CPU than this one, or without some instructions, none is ours to use.
_FOR_THIS_CPU = config.CPU_NAME is None and config.CPU_FEATURES is None and config.ENABLE_AVX  # type: ignore[attr-defined]


def _has(feature: str) -> bool:
    return _FOR_THIS_CPU and bool(llvm.get_host_cpu_features().get(feature, False))


HAS_WIDE_REGISTERS: bool = _has("avx512f")  # 32 of sixteen lanes; elsewhere they hold a quarter of that
HAS_PAIR_DOT: bool = _has("avx2")
HAS_BYTE_DOT: bool = _has("avx512vnni")
HAS_BF16_DOT: bool = _has("avx512bf16")


class Vector(types.Type):
    """Sixteen float32 lanes in a register."""

    def __init__(self) -> None:
        super().__init__(name="winnow.f32x16")


class BFloat(ir.Type):
    """LLVM's `bfloat`, which llvmlite does not name."""

    intrinsic_name = "bf16"

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash("bfloat")


vector = Vector()
I8, I16, I32, I64, F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
F32X16, I32X16, I16X16 = (ir.VectorType(scalar, LANES) for scalar in (F32, I32, I16))
BF16X16, BF16X32 = ir.VectorType(BFloat(), LANES), ir.VectorType(BFloat(), 2 * LANES)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, F32X16)
