"""Keys and values as codes of a few bits, with a scale and a minimum for each group of them.

reference.py     the definition
cpu.py           what is read back, with Numba
"""

import torch
from torch import Tensor

from winnow.kernels.launch import numba_missing
from winnow.kernels.quantize.form import Axis, Form, scales_of
from winnow.kernels.quantize.reference import dequantize_reference, quantize

__all__ = ["Axis", "Form", "dequantize", "dequantize_reference", "quantize", "scales_of"]


def dequantize(codes: Tensor, scales: Tensor, form: Form, axis: Axis, first: int, dtype: torch.dtype) -> Tensor:
    """What `quantize` was given, as far as the codes tell: [kv_heads, units, head_dim] in `dtype`.

    Args:
        codes: [kv_heads, units, bytes] uint8, usually a view of more; each head's units side by side.
        scales: of these units or the groups that they are in (`scales_of`). first: the place of the first unit in the
            first group.
    """
    if codes.device.type == "cpu" and numba_missing() is None and _fits(codes, scales, form, dtype):
        from winnow.kernels.quantize.cpu import dequantize_cpu

        return dequantize_cpu(codes, scales, form, axis, first, dtype)
    return dequantize_reference(codes, scales, form, axis, first, dtype)


def _fits(codes: Tensor, scales: Tensor, form: Form, dtype: torch.dtype) -> bool:
    return form.in_lanes and dtype in (torch.float32, torch.bfloat16)
