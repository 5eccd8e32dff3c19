"""Copy chosen units of every KV head, with Numba, on addresses."""

import torch
from torch import Tensor

from winnow.kernels.attend.softmax import copy
from winnow.kernels.dealt import arguments, kernel
from winnow.kernels.launch import match_torch_threads
from winnow.kernels.simd.memory import read_i64
from winnow.kernels.team import fetch_add

RUN = 256  # units of one task


KINDS = "i" * 10


@kernel(KINDS)
def pack_kernel(task: int, tasks: int, place: int) -> None:
    """Units of `size` bytes, a multiple of 64, `run` of a head after each other and others at the same time.

    Counts at `wrong` how many indices are out of range; those are not copied.
    """
    units, stride, count, index, out, out_stride, chosen, size, run, wrong = arguments(place, KINDS)
    runs = (chosen + run - 1) // run
    head, first = task // runs, task % runs * run
    for i in range(first, min(first + run, chosen)):
        unit = read_i64(index + 8 * (head * chosen + i))
        source, target = units + head * stride + unit * size, out + head * out_stride + i * size
        if not 0 <= unit < count:
            fetch_add(wrong, 1)
        elif source != target:  # what stays where it is need not be copied
            copy(source, target, size)


def pack_cpu(units: Tensor, index: Tensor, out: Tensor, *, in_order: bool = False) -> None:
    """The arguments of `pack()`; a unit has a multiple of 64 bytes. in_order: those of a head one after the other."""
    heads, count, head_dim = units.shape
    index, width = index.contiguous(), units.itemsize
    chosen, wrong = index.shape[1], torch.zeros(1, dtype=torch.int64, device="cpu")
    run = max(1, chosen) if in_order else RUN
    match_torch_threads()
    pack_kernel(
        heads * -(-chosen // run), units.data_ptr(), units.stride(0) * width, count, index.data_ptr(), out.data_ptr(),
        out.stride(0) * width, chosen, head_dim * width, run, wrong.data_ptr(),
    )  # fmt: skip
    if wrong:
        raise ValueError(f"pack: {wrong.item()} of {index.numel()} indices are not below the number of units, {count}")
