"""Copy chosen units of every KV head, with Numba, on addresses."""

from numba import njit, prange, types
from torch import Tensor

from winnow.kernels.attend.softmax import copy
from winnow.kernels.launch import match_torch_threads
from winnow.kernels.simd.memory import read_i64

RUN = 256  # units of one task


@njit(types.int64(*(types.int64,) * 10), cache=True, parallel=True, nogil=True, error_model="numpy")
def pack_kernel(
    units: int, stride: int, count: int, index: int, out: int, out_stride: int, heads: int, chosen: int, size: int,
    run: int,
) -> int:  # fmt: skip
    """Units of `size` bytes, a multiple of 64, `run` of a head after each other and others at the same time.

    Returns how many indices are out of range; those are not copied.
    """
    runs = (chosen + run - 1) // run
    wrong = 0
    for task in prange(heads * runs):
        head, first = task // runs, task % runs * run
        for i in range(first, min(first + run, chosen)):
            unit = read_i64(index + 8 * (head * chosen + i))
            source, target = units + head * stride + unit * size, out + head * out_stride + i * size
            if not 0 <= unit < count:
                wrong += 1
            elif source != target:  # what stays where it is need not be copied
                copy(source, target, size)
    return wrong


def pack_cpu(units: Tensor, index: Tensor, out: Tensor, *, in_order: bool = False) -> None:
    """The arguments of `pack()`; a unit has a multiple of 64 bytes. in_order: those of a head one after the other."""
    heads, count, head_dim = units.shape
    index, width = index.contiguous(), units.itemsize
    match_torch_threads()
    wrong = pack_kernel(
        units.data_ptr(), units.stride(0) * width, count, index.data_ptr(), out.data_ptr(), out.stride(0) * width,
        heads, index.shape[1], head_dim * width, max(1, index.shape[1]) if in_order else RUN,
    )  # fmt: skip
    if wrong:
        raise ValueError(f"pack: {wrong} of {index.numel()} indices are not below the number of units, {count}")
