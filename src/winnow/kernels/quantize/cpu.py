"""What codes stand for, with Numba: in memory, for many rows and for who looks at units."""

import torch
from numba import njit, prange, types
from torch import Tensor

from winnow.kernels.launch import match_torch_threads
from winnow.kernels.quantize.form import LANES, Axis, Form
from winnow.kernels.quantize.lanes import load_codes, load_halves, read_half
from winnow.kernels.simd import fma, splat, store_bf16, store_f32

RUN = 256  # units of one task


@njit(cache=True, error_model="numpy", inline="always")
def write_lanes(out: int, value, half: bool) -> None:  # type: ignore[no-untyped-def]
    if half:
        store_bf16(out, value)
    else:
        store_f32(out, value)


@njit(types.void(*(types.int64,) * 14, types.boolean, types.boolean), cache=True, parallel=True, nogil=True)
def dequantize_kernel(
    codes: int, codes_stride: int, scales: int, scales_stride: int, minima: int, row: int, out: int, heads: int,
    units: int, first: int, head_dim: int, row_bytes: int, bits: int, group: int, by_channel: bool, half: bool,
) -> None:  # fmt: skip
    """out[h, u] = scale * code + minimum. minima: bytes from scales to minima; row: from one row of scales to the next,
    a unit's being two bytes apart where groups are of channels."""
    runs, size, mask = (units + RUN - 1) // RUN, 2 if half else 4, 2**bits - 1
    for task in prange(heads * runs):
        head, begin = task // runs, task % runs * RUN
        mine = scales + head * scales_stride
        for u in range(begin, min(begin + RUN, units)):
            source = codes + head * codes_stride + u * row_bytes
            target = out + (head * units + u) * head_dim * size
            for c in range(0, head_dim, LANES):
                lanes = load_codes(source + c % row_bytes, c // row_bytes * bits, mask)
                if by_channel:
                    place = mine + (first + u) // group * row + 2 * c
                    value = fma(lanes, load_halves(place), load_halves(place + minima))
                else:
                    place = mine + c // group * row + 2 * u
                    value = fma(lanes, splat(read_half(place)), splat(read_half(place + minima)))
                write_lanes(target + c * size, value, half)


def dequantize_cpu(codes: Tensor, scales: Tensor, form: Form, axis: Axis, first: int, dtype: torch.dtype) -> Tensor:
    """The arguments of `dequantize`; `form.in_lanes`, and float32 or bfloat16."""
    heads, units, _ = codes.shape
    out = torch.empty(heads, units, form.head_dim, dtype=dtype)
    by_channel = axis == "channel"
    minima, row = (scales.stride(2), scales.stride(1)) if by_channel else scales.stride()[1:3]
    match_torch_threads()
    dequantize_kernel(
        codes.data_ptr(), codes.stride(0), scales.data_ptr(), 2 * scales.stride(0), 2 * minima, 2 * row,
        out.data_ptr(), heads, units, first, form.head_dim, form.row_bytes, form.bits, form.group, by_channel,
        dtype == torch.bfloat16,
    )  # fmt: skip
    return out
