"""Sums over what stands before, with Numba, on addresses."""

import torch
from numba import njit
from torch import Tensor

from winnow.kernels.attend.softmax import HIDDEN, ZERO
from winnow.kernels.dealt import arguments, kernel
from winnow.kernels.floats import floats
from winnow.kernels.launch import match_torch_threads, parts_of_work
from winnow.kernels.select.cpu_mean import BLOCK
from winnow.kernels.select.lanes import load_part, store_part
from winnow.kernels.simd.arithmetic import add, exp, mul, splat
from winnow.kernels.simd.memory import load_f32, store_f32


@njit(cache=True, error_model="numpy")
def mass_block(row: int, at: int, size: int, width: int, scale: float, work: int, out: int) -> None:
    """The sums for the candidates [at, at + size) of `row`, by doubling: work[j] becomes the sum of 2, 4, 8 .. weights
    from j on, and those that the digits of `width` name are added up."""
    first = at - (width - 1)
    length = size + width + 16  # also what is read past the end
    for j in range(0, length + width, 16):
        store_f32(work + 4 * j, splat(ZERO))
    begin, end = max(first, 0), at + size
    for j in range(begin, end, 16):
        weights = exp(load_part(row + 4 * j, end - j, HIDDEN))
        store_part(work + 4 * (j - first), end - j, mul(weights, splat(scale)))
    for j in range(0, size, 16):
        store_part(out + 4 * (at + j), size - j, splat(ZERO))
    span, summed = 1, 0
    while span <= width:
        if width & span:
            for j in range(0, size, 16):
                place, left = out + 4 * (at + j), size - j
                part = load_f32(work + 4 * (j + summed))
                store_part(place, left, add(load_part(place, left, ZERO), part))
            summed += span
        for j in range(0, 4 * length, 64):
            store_f32(work + j, add(load_f32(work + j), load_f32(work + j + 4 * span)))
        span *= 2


KINDS = "iiiiiiiif"


@kernel(KINDS)
def mass_kernel(part: int, parts: int, place: int) -> None:
    """`block` candidates at a time; work: room for block + 4 * width + 64 float32, `parts` times."""
    weights, stride, out, heads, count, width, block, work, scale = arguments(place, KINDS)
    blocks = (count + block - 1) // block
    size = 4 * (block + 4 * width + 64)
    for task in range(part, heads * blocks, parts):
        head, at = task // blocks, task % blocks * block
        mass_block(
            weights + head * stride, at, min(block, count - at), width, scale, work + part * size,
            out + 4 * count * head,
        )  # fmt: skip


def mass_back(log_weights: Tensor, count: int, scale: float | Tensor) -> Tensor:
    """As in `reference.py`."""
    heads, candidates = log_weights.shape
    width = min(count, candidates)
    block = max(BLOCK, width)
    match_torch_threads()
    parts = parts_of_work()
    out, work = floats(heads, candidates), torch.zeros(parts, block + 4 * width + 64, dtype=torch.float32, device="cpu")
    mass_kernel(
        parts, log_weights.data_ptr(), 4 * log_weights.stride(0), out.data_ptr(), heads, candidates, width, block,
        work.data_ptr(), float(scale),
    )  # fmt: skip
    return out
