"""The pages that a query could match best, with Numba, on addresses: bounds are read once, at the speed of memory."""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from winnow.kernels.attend.cpu_decode import PIECE, padded, take_dots
from winnow.kernels.attend.softmax import HIDDEN, ZERO
from winnow.kernels.dealt import arguments, kernel
from winnow.kernels.floats import floats
from winnow.kernels.launch import match_torch_threads
from winnow.kernels.select.cpu_top import bound_for, write_index
from winnow.kernels.simd.memory import read_bf16, read_f32, read_i64, write_bf16, write_f32, write_i64


def room_floats(group: int, head_dim: int, pages: int) -> int:
    """The memory that choosing for one KV head takes, in float32."""
    return 2 * (-(-group // 4) * 4) * (head_dim + PIECE) + pages


@njit(cache=True, error_model="numpy")
def part_signs(query: int, count: int, positive: int, negative: int, half: bool) -> None:
    """Its positive values with 0 in place of others, and its negative ones."""
    for i in range(count):
        value = read_bf16(query + 2 * i) if half else read_f32(query + 4 * i)
        above, below = max(value, ZERO), min(value, ZERO)
        if half:
            write_bf16(positive + 2 * i, above)
            write_bf16(negative + 2 * i, below)
        else:
            write_f32(positive + 4 * i, above)
            write_f32(negative + 4 * i, below)


@njit(cache=True, error_model="numpy")
def choose_pages(
    query: int, least: int, greatest: int, group: int, head_dim: int, pages: int, page: int, count: int, out: int,
    room: int, half: bool,
) -> None:  # fmt: skip
    """`best_pages()` for one KV head. room: `room_floats` of memory."""
    size, vectors = head_dim * (2 if half else 4), padded(group)
    positive, negative = room, room + size * vectors
    above = negative + size * vectors
    below = above + 4 * PIECE * vectors
    scores = below + 4 * PIECE * vectors
    part_signs(query, group * head_dim, positive, negative, half)
    for at in range(0, pages, PIECE):
        here, most, low = min(PIECE, pages - at), greatest + at * size, least + at * size
        take_dots(positive, most, low, here, size, above, group, half)
        take_dots(negative, low, low, here, size, below, group, half)
        for j in range(here):
            score = HIDDEN
            for i in range(group):
                place = 4 * (i * PIECE + j)
                score = max(score, np.float32(read_f32(above + place) + read_f32(below + place)))
            write_f32(scores + 4 * (at + j), score)
    # Numbers of pages go to the end of `out`, which the numbers of their units, from the front, never overtake.
    chosen = out + 8 * count * (page - 1)
    known = write_index(scores, pages, bound_for(scores, pages, count), count, chosen)
    for i in range(known, count):  # of scores that are NaN none is best
        write_i64(chosen + 8 * i, 0)
    for i in range(count):
        first = page * read_i64(chosen + 8 * i)
        for j in range(page):
            write_i64(out + 8 * (i * page + j), first + j)


KINDS = "i" * 12 + "b"


@kernel(KINDS)
def pages_kernel(head: int, kv_heads: int, place: int) -> None:
    """`best_pages()` of one KV head, on addresses; strides in bytes."""
    (
        query, least, greatest, stride, group, head_dim, pages, page, count, out, room, room_bytes, half,
    ) = arguments(place, KINDS)  # fmt: skip
    choose_pages(
        query + head * group * head_dim * (2 if half else 4), least + head * stride, greatest + head * stride, group,
        head_dim, pages, page, count, out + 8 * head * count * page, room + head * room_bytes, half,
    )  # fmt: skip


def best_pages_cpu(query: Tensor, least: Tensor, greatest: Tensor, page: int, count: int) -> Tensor:
    """The arguments and result of `best_pages()`; head_dim a multiple of 32, bfloat16 or float32."""
    kv_heads, pages, head_dim = least.shape
    query, group = query.contiguous(), len(query) // kv_heads
    out = torch.empty(kv_heads, count * page, dtype=torch.int64, device="cpu")
    room = floats(kv_heads, room_floats(group, head_dim, pages))
    match_torch_threads()
    pages_kernel(
        kv_heads, query.data_ptr(), least.data_ptr(), greatest.data_ptr(), least.stride(0) * least.itemsize, group,
        head_dim, pages, page, count, out.data_ptr(), room.data_ptr(), room.stride(0) * room.itemsize,
        query.dtype == torch.bfloat16,
    )  # fmt: skip
    return out
