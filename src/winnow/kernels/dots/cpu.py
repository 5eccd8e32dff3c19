"""The logits of one row, with Numba: every key is read once, at the speed of memory."""

import torch
from torch import Tensor

from winnow.kernels.attend.cpu_decode import PIECE, padded, take_dots
from winnow.kernels.attend.softmax import copy
from winnow.kernels.dealt import arguments, kernel
from winnow.kernels.floats import floats
from winnow.kernels.launch import match_torch_threads, parts_of_work

KINDS = "i" * 10 + "b"


@kernel(KINDS)
def dots_kernel(task: int, tasks: int, place: int) -> None:
    """`dots()` on addresses, `out` having whole pieces in every row.

    A task is a run of pieces of one KV head; its memory holds queries, then the logits of a piece.
    """
    q, k, out, work, work_bytes, group, head_dim, units, runs, k_stride, half = arguments(place, KINDS)
    size = head_dim * (2 if half else 4)
    head, run = task // runs, task % runs
    queries = work + task * work_bytes
    logits = queries + 4 * padded(group) * head_dim
    copy(q + head * group * size, queries, group * size)
    pieces = (units + PIECE - 1) // PIECE
    for piece in range(pieces * run // runs, pieces * (run + 1) // runs):
        at = piece * PIECE
        keys = k + head * k_stride + at * size
        take_dots(queries, keys, keys, min(PIECE, units - at), size, logits, group, half)
        for g in range(group):
            copy(logits + 4 * PIECE * g, out + 4 * ((head * group + g) * pieces * PIECE + at), 4 * PIECE)


def dots_cpu(q: Tensor, k: Tensor) -> Tensor:
    """The arguments and result of `dots()`; head_dim a multiple of 32, bfloat16 or float32."""
    kv_heads, units, head_dim = k.shape
    group = q.shape[0] // kv_heads
    q = q.contiguous()
    pieces = -(-units // PIECE)
    out = floats(q.shape[0], pieces * PIECE)
    match_torch_threads()
    runs = max(1, min(-(-parts_of_work() // kv_heads), pieces // 4))
    vectors = -(-group // 4) * 4
    work_floats = vectors * (head_dim + PIECE)
    work = floats(kv_heads * runs * work_floats)
    dots_kernel(
        kv_heads * runs, q.data_ptr(), k.data_ptr(), out.data_ptr(), work.data_ptr(), 4 * work_floats, group, head_dim,
        units, runs, k.stride(0) * k.itemsize, k.dtype == torch.bfloat16,
    )  # fmt: skip
    return out[:, :units]
