"""Attention of few rows over many units, with Numba: every unit is read once, at the speed of memory.

The group of query heads that shares a KV head is handled together, so K and V are read once per KV head and not once
per query head. Threads take (KV head, run of units) tasks, each with its own running softmax; the runs of a head are
merged by their log-sum-exp at the end. Inside a task units go in pieces of at most `PIECE`: logits, then their
exponentials, then the weighted sum of V, so that everything but K and V stays in the first-level cache.

Everything below the entry point works on addresses; `vectors` are the rows * group query vectors of one KV head, vector
r * group + g being row r and query head g of the group.
"""

import functools
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from winnow.kernels.attend.softmax import HIDDEN, ONE, ZERO, cap, copy, fill, lse_of, update_softmax
from winnow.kernels.dealt import arguments, kernel
from winnow.kernels.floats import floats
from winnow.kernels.launch import match_torch_threads, parts_of_work
from winnow.kernels.simd.arithmetic import fma, mul, splat
from winnow.kernels.simd.kinds import HAS_BF16_DOT
from winnow.kernels.simd.memory import ask_for, load_f32, read_f32, read_i64, store_bf16, store_f32, write_f32
from winnow.kernels.simd.tiles import dot_tile, weigh_tile

AHEAD = 16  # units that are asked for before they are read, where they lie apart
PIECE = 64  # units; PIECE units of K and V with head_dim 128 are 32 KiB in bfloat16

dots_1x16, dots_2x8, dots_4x4 = dot_tile(1, 16), dot_tile(2, 8), dot_tile(4, 4)
dots_1x1, dots_2x1, dots_4x1 = dot_tile(1, 1), dot_tile(2, 1), dot_tile(4, 1)
weigh_1, weigh_2, weigh_4 = weigh_tile(1, False), weigh_tile(2, False), weigh_tile(4, False)
weigh_1_half, weigh_2_half, weigh_4_half = weigh_tile(1, True), weigh_tile(2, True), weigh_tile(4, True)


@njit(cache=True, error_model="numpy")
def padded(vectors: int) -> int:
    """Query vectors go in tiles of 1, 2 or 4."""
    return vectors if vectors <= 2 else (vectors + 3) // 4 * 4


@njit(cache=True, error_model="numpy")
def areas(work: int, vectors: int, head_dim: int) -> tuple[int, ...]:
    """Where in a task's memory lie: queries, logits [vectors, PIECE], sums [vectors, head_dim], tops, totals [vectors].

    float32, but for the queries, which have the dtype of K; tops are running maxima, totals running denominators.
    """
    logits = work + 4 * vectors * head_dim
    sums = logits + 4 * vectors * PIECE
    tops = sums + 4 * vectors * head_dim
    return work, logits, sums, tops, tops + 64 * ((vectors + 15) // 16)


def work_floats(vectors: int, head_dim: int) -> int:
    """The size of a task's memory, in float32."""
    return vectors * (2 * head_dim + PIECE) + 2 * 16 * -(-vectors // 16)


@njit(cache=True, error_model="numpy")
def take_dots(q: int, k: int, v: int, count: int, size: int, logits: int, vectors: int, half: bool) -> None:
    """logits[i, j] = q[i] . k[j] for padded(vectors) x count; rows of `size` bytes, logits[i] PIECE floats apart.

    Sixteen products at a time, and one by one what is left of a piece that is cut short. Meanwhile the same units of v,
    which come next, are fetched: the hardware follows neither of two streams that stop and go.
    """
    row = 4 * PIECE
    wide = 16 if vectors == 1 else 8 if vectors == 2 else 4
    whole = count // wide * wide
    for i in range(0, vectors, 4):
        for j in range(0, whole, wide):
            ahead = v + j * size if i == 0 else q
            if vectors == 1:
                dots_1x16(q, size, k + j * size, size, size, logits + 4 * j, row, ahead, half)
            elif vectors == 2:
                dots_2x8(q, size, k + j * size, size, size, logits + 4 * j, row, ahead, half)
            else:
                dots_4x4(q + i * size, size, k + j * size, size, size, logits + i * row + 4 * j, row, ahead, half)
        for j in range(whole, count):
            ahead = v + j * size
            if vectors == 1:
                dots_1x1(q, size, k + j * size, size, size, logits + 4 * j, row, ahead, half)
            elif vectors == 2:
                dots_2x1(q, size, k + j * size, size, size, logits + 4 * j, row, ahead, half)
            else:
                dots_4x1(q + i * size, size, k + j * size, size, size, logits + i * row + 4 * j, row, ahead, half)


@njit(cache=True, error_model="numpy")
def add_weighted(
    weights: int, v: int, following: int, count: int, head_dim: int, sums: int, vectors: int, half: bool
) -> None:
    """sums[i] += weights[i] . v for padded(vectors) rows of head_dim float32, 32 of its columns at a time.

    Meanwhile the next piece of k, at `following`, is fetched.
    """
    row, size, sums_row = 4 * PIECE, head_dim * (2 if half else 4), 4 * head_dim
    for c in range(0, head_dim, 32):
        columns = v + (2 * c if half else 4 * c)
        for i in range(0, vectors, 4):
            mine, place = weights + i * row, sums + 4 * (i * head_dim + c)
            ahead = following + c // 32 * count * size * 32 // head_dim if i == 0 else sums
            if vectors == 1 and half:
                weigh_1_half(mine, row, columns, size, count, place, sums_row, ahead)
            elif vectors == 1:
                weigh_1(mine, row, columns, size, count, place, sums_row, ahead)
            elif vectors == 2 and half:
                weigh_2_half(mine, row, columns, size, count, place, sums_row, ahead)
            elif vectors == 2:
                weigh_2(mine, row, columns, size, count, place, sums_row, ahead)
            elif half:
                weigh_4_half(mine, row, columns, size, count, place, sums_row, ahead)
            else:
                weigh_4(mine, row, columns, size, count, place, sums_row, ahead)


@njit(cache=True, error_model="numpy")
def sees(q_position: int, k_position: int, window: int) -> bool:
    """Whether a row sees a unit; window 0 means none."""
    return k_position <= q_position and (window == 0 or q_position - k_position < window)


@njit(cache=True, error_model="numpy")
def seen_by_any(q_positions: int, rows: int, k_position: int, window: int) -> bool:
    for r in range(rows):  # noqa: SIM110 (Numba has no any() over a generator)
        if sees(read_i64(q_positions + 8 * r), k_position, window):
            return True
    return False


@njit(cache=True, error_model="numpy")
def hide_unseen(logits: int, q_position: int, k_positions: int, count: int, window: int) -> None:
    """-inf where one row does not see a unit that another row sees."""
    for j in range(count):
        if not sees(q_position, read_i64(k_positions + 8 * j), window):
            write_f32(logits + 4 * j, HIDDEN)


@njit(cache=True, error_model="numpy")
def next_piece(at: int, stop: int, rows: int, q_positions: int, k_positions: int, window: int) -> tuple[int, int]:
    """The next run of at most PIECE units from `at` on that each are seen by some row: (first, end), or (stop, stop).

    Only such a run is ever read: the memory of a unit nobody sees may hold anything, NaN included.
    """
    while at < stop and not seen_by_any(q_positions, rows, read_i64(k_positions + 8 * at), window):
        at += 1
    end = at
    while end < min(at + PIECE, stop) and seen_by_any(q_positions, rows, read_i64(k_positions + 8 * end), window):
        end += 1
    return at, end


@njit(cache=True, error_model="numpy")
def hand_out(logits: int, factor: float, kept: int, count: int) -> None:
    """kept[j] = factor * logits[j] for `count` units and none beyond: there another thread writes."""
    whole = count // 16 * 16
    for j in range(0, 4 * whole, 64):
        store_f32(kept + j, mul(load_f32(logits + j), splat(factor)))
    for j in range(whole, count):
        write_f32(kept + 4 * j, factor * read_f32(logits + 4 * j))


@njit(cache=True, error_model="numpy")
def hide_run(kept: int, start: int, stop: int) -> None:
    """-inf at kept[start:stop]."""
    whole = (stop - start) // 16 * 16
    fill(kept + 4 * start, HIDDEN, 4 * whole)
    for j in range(start + whole, stop):
        write_f32(kept + 4 * j, HIDDEN)


@njit(cache=True, error_model="numpy")
def gather_piece(k: int, v: int, index: int, count: int, left: int, size: int, keys: int, values: int) -> None:
    """Put `count` units of `size` bytes side by side: those whose numbers, counted from k and v on, are at `index`,
    where there are `left` in all; what comes next is asked for, since no hardware foresees it."""
    for j in range(count):
        if j + AHEAD < left:
            following = size * read_i64(index + 8 * (j + AHEAD))
            for line in range(0, size, 64):
                ask_for(k + following + line)
                ask_for(v + following + line)
        place = size * read_i64(index + 8 * j)
        copy(k + place, keys + size * j, size)
        copy(v + place, values + size * j, size)


@njit(cache=True, error_model="numpy")
def attend_run(
    k: int, v: int, start: int, stop: int, head_dim: int, rows: int, group: int, q_positions: int, k_positions: int,
    window: int, scale: float, softcap: float, masked: bool, half: bool, work: int, kept: int, kept_row: int,
    index: int, room: int,
) -> None:  # fmt: skip
    """The softmax of one KV head's query vectors over units [start, stop), in `work` (see `attend_decode`).

    kept: where the logits of the vectors go, `kept_row` bytes apart; 0 for nowhere. index: where the int64 numbers of
    the units are, counted from k and v on, of which those in [start, stop) are read; 0: they are 0, 1, 2 ..; room: for
    a piece of them, `2 * PIECE` units.
    """
    vectors, size = rows * group, head_dim * (2 if half else 4)
    queries, logits, sums, tops, totals = areas(work, padded(vectors), head_dim)
    fill(sums, ZERO, tops - sums)
    fill(tops, HIDDEN, totals - tops)
    fill(totals, ZERO, totals - tops)
    if kept != 0 and masked:
        for i in range(vectors):
            hide_run(kept + i * kept_row, start, stop)
    at = start
    while at < stop:
        end = min(at + PIECE, stop)
        if masked:
            at, end = next_piece(at, stop, rows, q_positions, k_positions, window)
        count = end - at
        if count == 0:
            break
        keys, values, following = k + at * size, v + at * size, k + (at + PIECE) * size
        if index != 0:
            keys, values, following = room, room + PIECE * size, room
            gather_piece(k, v, index + 8 * at, count, stop - at, size, keys, values)
        take_dots(queries, keys, values, count, size, logits, vectors, half)
        lanes = (count + 15) // 16 * 16
        for i in range(vectors):
            mine = logits + 4 * PIECE * i
            if softcap != 0:
                cap(mine, lanes, scale, softcap)
            for j in range(count, lanes):
                write_f32(mine + 4 * j, HIDDEN)
            if masked and rows > 1:
                hide_unseen(mine, read_i64(q_positions + 8 * (i // group)), k_positions + 8 * at, count, window)
            factor = ONE if softcap != 0 else scale
            if kept != 0:
                hand_out(mine, factor, kept + i * kept_row + 4 * at, count)
            update_softmax(
                mine, lanes, factor, tops + 4 * i, totals + 4 * i,
                sums + 4 * head_dim * i, head_dim, half and HAS_BF16_DOT,
            )  # fmt: skip
        add_weighted(logits, values, following, count, head_dim, sums, vectors, half)
        at = end


@njit(cache=True, error_model="numpy")
def merge_runs(
    work: int, task_bytes: int, runs: int, vector: int, vectors: int, head_dim: int, sink: float, has_sink: bool,
    out: int, half: bool,
) -> float:  # fmt: skip
    """Write one query vector's output to the address `out` and return its log-sum-exp.

    work: of the first of the `runs` of its KV head. The sink is an extra logit, in the denominator only.
    """
    _, _, sums, tops, totals = areas(work, padded(vectors), head_dim)
    sums, tops, totals = sums + 4 * head_dim * vector, tops + 4 * vector, totals + 4 * vector
    top: Any = sink if has_sink else HIDDEN
    for run in range(0, runs * task_bytes, task_bytes):
        top = max(top, read_f32(tops + run))
    total: Any = np.float32(np.exp(sink - top)) if has_sink else ZERO
    for run in range(0, runs * task_bytes, task_bytes):
        if read_f32(totals + run) > 0:
            total += read_f32(totals + run) * np.exp(read_f32(tops + run) - top)
    for c in range(0, head_dim, 16):
        value = splat(ZERO)
        for run in range(0, runs * task_bytes, task_bytes):
            if read_f32(totals + run) > 0:
                share: Any = np.exp(read_f32(tops + run) - top) / total
                value = fma(load_f32(sums + run + 4 * c), splat(share), value)
        if half:
            store_bf16(out + 2 * c, value)
        else:
            store_f32(out + 4 * c, value)
    return lse_of(top, total)


RUNS, MERGES = "i" * 19 + "ffbb", "i" * 10 + "b"


@kernel(RUNS)
def decode_kernel(task: int, tasks: int, place: int) -> None:
    """`attend()` of one run of units, on addresses; the three strides lead from one KV head to the next, in bytes.

    `window`, `softcap`: 0 for none. masked: positions decide who sees what; otherwise all rows see all. kept: where the
    logits go, [q_heads, units], of one row; 0 for nowhere. index: [kv_heads, units], 0 for none; room: for a piece of
    every task.
    """
    (
        q, k, v, q_positions, k_positions, kept, work, task_bytes, rows, kv_heads, group, head_dim, units, k_stride,
        v_stride, positions_stride, window, index, room, scale, softcap, masked, half,
    ) = arguments(place, RUNS)  # fmt: skip
    row_bytes = group * head_dim * (2 if half else 4)  # one row of one KV head's queries
    runs = tasks // kv_heads
    head, run, mine = task // runs, task % runs, work + task * task_bytes
    for r in range(rows):
        copy(q + (r * kv_heads + head) * row_bytes, mine + r * row_bytes, row_bytes)
    attend_run(
        k + head * k_stride, v + head * v_stride, units * run // runs, units * (run + 1) // runs, head_dim,
        rows, group, q_positions, k_positions + head * positions_stride, window, scale, softcap, masked, half, mine,
        0 if kept == 0 else kept + 4 * head * group * units, 4 * units,
        0 if index == 0 else index + 8 * head * units, room + task * 2 * PIECE * (row_bytes // group),
    )  # fmt: skip


@kernel(MERGES)
def merge_kernel(head: int, kv_heads: int, place: int) -> None:
    """The runs of one KV head make what attention gives, and its log-sum-exp. `sinks`, `lse`: 0 for none."""
    sinks, out, lse, work, task_bytes, runs, rows, group, head_dim, size, half = arguments(place, MERGES)
    for i in range(rows * group):
        query = ((i // group) * kv_heads + head) * group + i % group
        sink = read_f32(sinks + 4 * (head * group + i % group)) if sinks != 0 else ZERO
        value = merge_runs(
            work + head * runs * task_bytes, task_bytes, runs, i, rows * group, head_dim, sink, sinks != 0,
            out + query * size, half,
        )  # fmt: skip
        if lse != 0:
            write_f32(lse + 4 * query, value)


@functools.cache
def balanced_runs(kv_heads: int, threads: int) -> int:
    """Into how many runs the units of a head are cut, so that no thread waits for more than a tenth of the work.

    As few as that takes, since every run is merged: 1 where the heads divide by the threads, 2 for 3 heads on 2.
    """

    def idle(runs: int) -> float:
        tasks = kv_heads * runs
        return 1 - tasks / (-(-tasks // threads) * threads)

    return next(runs for runs in range(1, threads + 1) if idle(runs) <= 0.1)


def attend_decode(
    q: Tensor, k: Tensor, v: Tensor, q_positions: Tensor, k_positions: Tensor,
    *, scale: float, past: int | None = None, window: int | None = None, softcap: float | None = None,
    sinks: Tensor | None = None, return_lse: bool = False, logits: Tensor | None = None, index: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The arguments and results of `attend()`; head_dim a multiple of 32, bfloat16 or float32.

    logits: memory for the logits of one row, [q_heads, units] float32, contiguous.
    """
    rows, q_heads, head_dim = q.shape
    kv_heads, units = len(k), k.shape[1] if index is None else index.shape[1]
    half = q.dtype == torch.bfloat16
    width = 2 if half else 4
    q, q_positions = q.contiguous(), q_positions.contiguous()
    if k_positions.stride(-1) != 1:
        k_positions = k_positions.contiguous()
    sinks = None if sinks is None else sinks.float().contiguous()
    out = torch.empty_like(q)
    lse = floats(rows, q_heads) if return_lse else None
    masked = window is not None or past is None or (past < units and rows > 1)
    match_torch_threads()
    runs = max(1, min(balanced_runs(kv_heads, parts_of_work()), units // (4 * PIECE)))
    task_floats = work_floats(-(-rows * q_heads // kv_heads // 4) * 4, head_dim)
    work = floats(kv_heads * runs * task_floats)
    index = None if index is None else index.contiguous()
    room = None if index is None else k.new_empty(kv_heads * runs, 2 * PIECE, head_dim)
    group = q_heads // kv_heads
    decode_kernel(
        kv_heads * runs, q.data_ptr(), k.data_ptr(), v.data_ptr(), q_positions.data_ptr(), k_positions.data_ptr(),
        0 if logits is None else logits.data_ptr(), work.data_ptr(), 4 * task_floats, rows, kv_heads, group, head_dim,
        units, k.stride(0) * width, v.stride(0) * width, 8 * k_positions.stride(0) if k_positions.dim() == 2 else 0,
        window or 0, 0 if index is None else index.data_ptr(), 0 if room is None else room.data_ptr(), scale,
        softcap or 0.0, masked, half,
    )  # fmt: skip
    merge_kernel(
        kv_heads, 0 if sinks is None else sinks.data_ptr(), out.data_ptr(), 0 if lse is None else lse.data_ptr(),
        work.data_ptr(), 4 * task_floats, runs, rows, group, head_dim, width * head_dim, half,
    )  # fmt: skip
    return out, lse
