"""Attention of many rows, with Numba: two matrix products around a running softmax, nothing the size of rows x units.

The group's query heads are rows of the same products. A task is some rows of one KV head; it goes through the units
`BLOCK` at a time: packs K and V of the block into panels (amortised over all its rows), multiplies, updates the
softmax, multiplies. Blocks that no row of the task sees, above the diagonal or outside the window, are skipped; only
blocks that some row sees in part are masked. In bfloat16 the logits stay float32 and the weights are rounded to
bfloat16 for the second product, as in FlashAttention; a CPU without products of bfloat16 packs them as float32, and
rounds nothing.
"""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from winnow.kernels.attend.softmax import HIDDEN, ONE, ZERO, cap, copy, fill, lse_of, update_softmax, widen
from winnow.kernels.dealt import arguments, kernel
from winnow.kernels.floats import floats
from winnow.kernels.launch import match_torch_threads, parts_of_work
from winnow.kernels.simd.arithmetic import hidden_unless_seen, mul, splat
from winnow.kernels.simd.kinds import HAS_BF16_DOT
from winnow.kernels.simd.memory import (
    load_f32,
    read_f32,
    read_i64,
    store_bf16,
    store_f32,
    write_f32,
    write_i64,
)
from winnow.kernels.simd.products import PANEL, TILE_ROWS, pair_rows, product_tile, split_words, transpose_words

BLOCK = 128  # units
VECTORS = 96  # query vectors of a task: more would waste more of the blocks on the diagonal, fewer pack more often
MAX_HEAD_DIM = 256
QUERY_BYTES = 4 * MAX_HEAD_DIM  # from one query vector to the next
LOGIT_BYTES = 4 * BLOCK  # from one vector's logits, later its weights, to the next
PANEL_BYTES = 4 * PANEL  # one step of a panel
NOWHERE = 2**62  # the position of what is not a unit

dots_half, dots = product_tile(QUERY_BYTES, HAS_BF16_DOT), product_tile(QUERY_BYTES, False)
weigh_half, weigh = product_tile(LOGIT_BYTES, HAS_BF16_DOT), product_tile(LOGIT_BYTES, False)


@njit(cache=True, error_model="numpy")
def areas(work: int, vectors: int, head_dim: int) -> tuple[int, ...]:
    """Where in a thread's memory lie: queries, staging, keys, values, positions, logits, sums, tops, totals."""
    staging = work + vectors * QUERY_BYTES
    keys = staging + 4 * BLOCK * head_dim
    values = keys + 4 * BLOCK * head_dim
    positions = values + 4 * BLOCK * head_dim
    logits = positions + 8 * BLOCK
    sums = logits + vectors * LOGIT_BYTES
    tops = sums + 4 * vectors * head_dim
    return work, staging, keys, values, positions, logits, sums, tops, tops + 64 * ((vectors + 15) // 16)


def work_bytes(vectors: int, head_dim: int) -> int:
    """The size of a thread's memory, a multiple of a cache line."""
    units = BLOCK * (3 * 4 * head_dim + 8)
    return vectors * (QUERY_BYTES + LOGIT_BYTES + 4 * head_dim) + units + 2 * 64 * -(-vectors // 16)


@njit(cache=True, error_model="numpy")
def extent(positions: int, count: int) -> tuple[int, int]:
    """The smallest and the largest of `count` positions."""
    low = high = read_i64(positions)
    for i in range(1, count):
        position = read_i64(positions + 8 * i)
        low, high = min(low, position), max(high, position)
    return low, high


@njit(cache=True, error_model="numpy")
def stage(units: int, positions: int, low: int, high: int, size: int, staging: int) -> None:
    """Copy a block of units, with zeros where the position is outside [low, high]: 0 * NaN is NaN, in dead memory."""
    for j in range(BLOCK):
        if low <= read_i64(positions + 8 * j) <= high:
            copy(units + j * size, staging + j * size, size)
        else:
            fill(staging + j * size, ZERO, size)


@njit(cache=True, error_model="numpy")
def in_pairs(half: bool) -> bool:
    """Whether products are of words of two bfloat16; else of float32."""
    return half and HAS_BF16_DOT


@njit(cache=True, error_model="numpy")
def pack_query(query: int, head_dim: int, half: bool, target: int) -> None:
    """One query vector, as the products take it."""
    if half and not in_pairs(half):
        widen(query, target, head_dim)
    else:
        copy(query, target, head_dim * (2 if half else 4))


@njit(cache=True, error_model="numpy")
def pack_keys(k: int, head_dim: int, half: bool, keys: int) -> None:
    """A block of units [BLOCK, head_dim] -> panels [BLOCK / PANEL][words][PANEL units]."""
    size = head_dim * (2 if half else 4)
    words = size // 4
    panel_bytes = (words if in_pairs(half) else head_dim) * PANEL_BYTES
    for j in range(0, BLOCK, 16):
        panel = keys + j // PANEL * panel_bytes + j % PANEL * 4
        for w in range(0, words, 16):
            transpose_words(k + j * size + 4 * w, size, panel + w * PANEL_BYTES, PANEL_BYTES)
    if half and not in_pairs(half):
        for panel in range(keys, keys + BLOCK // PANEL * panel_bytes, panel_bytes):
            for w in range(words - 1, -1, -1):  # from the last one: what is not split yet stands before
                split_words(panel + w * PANEL_BYTES, panel + 2 * w * PANEL_BYTES)


@njit(cache=True, error_model="numpy")
def pack_values(v: int, head_dim: int, half: bool, values: int) -> None:
    """A block of units [BLOCK, head_dim] -> panels [head_dim / PANEL][units, or pairs of units][PANEL columns]."""
    size = head_dim * (2 if half else 4)
    for c in range(head_dim // PANEL):
        column = v + c * PANEL * (2 if half else 4)
        if in_pairs(half):
            panel = values + c * (BLOCK // 2) * PANEL_BYTES
            for j in range(0, BLOCK, 2):
                pair_rows(column + j * size, column + (j + 1) * size, panel + j // 2 * PANEL_BYTES)
        else:
            for j in range(BLOCK):
                pack_query(column + j * size, PANEL, half, values + (c * BLOCK + j) * PANEL_BYTES)


@njit(cache=True, error_model="numpy")
def multiply_keys(queries: int, keys: int, head_dim: int, logits: int, vectors: int, lanes: int, half: bool) -> None:
    """logits[i, j] = queries[i] . keys[j] for `vectors` (a multiple of TILE_ROWS) x `lanes` (of PANEL)."""
    words = head_dim // 2 if in_pairs(half) else head_dim
    for panel in range(lanes // PANEL):
        source, target = keys + panel * words * PANEL_BYTES, logits + panel * PANEL_BYTES
        for i in range(0, vectors, TILE_ROWS):
            if in_pairs(half):
                dots_half(queries + i * QUERY_BYTES, source, words, target + i * LOGIT_BYTES, LOGIT_BYTES, False)
            else:
                dots(queries + i * QUERY_BYTES, source, words, target + i * LOGIT_BYTES, LOGIT_BYTES, False)


@njit(cache=True, error_model="numpy")
def multiply_values(weights: int, values: int, head_dim: int, sums: int, vectors: int, lanes: int, half: bool) -> None:
    """sums[i] += weights[i, :lanes] . values"""
    row = 4 * head_dim
    for c in range(0, row, PANEL_BYTES):
        source = values + (c // 2 if in_pairs(half) else c) * BLOCK
        for i in range(0, vectors, TILE_ROWS):
            if in_pairs(half):
                weigh_half(weights + i * LOGIT_BYTES, source, lanes // 2, sums + i * row + c, row, True)
            else:
                weigh(weights + i * LOGIT_BYTES, source, lanes, sums + i * row + c, row, True)


@njit(cache=True, error_model="numpy")
def attend_rows(
    k: int, v: int, q_positions: int, k_positions: int, rows: int, group: int, head_dim: int, units: int,
    window: int, scale: float, softcap: float, half: bool, work: int, vectors: int,
) -> None:  # fmt: skip
    """The softmax of one task, over all units, in `work`; `vectors` is rows * group, rounded up to TILE_ROWS."""
    size = head_dim * (2 if half else 4)
    queries, staging, keys, values, positions, logits, sums, tops, totals = areas(work, vectors, head_dim)
    fill(sums, ZERO, tops - sums)
    fill(tops, HIDDEN, totals - tops)
    fill(totals, ZERO, totals - tops)
    first, last = extent(q_positions, rows)
    oldest = first - window + 1 if window else -NOWHERE  # positions outside [oldest, last] are seen by nobody
    for start in range(0, units, BLOCK):
        count = min(BLOCK, units - start)
        low, high = extent(k_positions + 8 * start, count)
        if low > last or high < oldest:
            continue
        partial = count < BLOCK or high > first or (window != 0 and low <= last - window)
        keys_of_block, values_of_block = k + start * size, v + start * size
        if partial:
            ends = 0  # past the last unit that may be seen: a triangle's block is often short
            for j in range(BLOCK):
                position = read_i64(k_positions + 8 * (start + j)) if j < count else NOWHERE
                write_i64(positions + 8 * j, position)
                if position <= last:
                    ends = j + 1
            count = ends
        dead = count < BLOCK or low < oldest or high > last
        if dead:
            stage(keys_of_block, positions, oldest, last, size, staging)
            keys_of_block = staging
        pack_keys(keys_of_block, head_dim, half, keys)
        if dead:
            stage(values_of_block, positions, oldest, last, size, staging)
            values_of_block = staging
        pack_values(values_of_block, head_dim, half, values)
        lanes = (count + PANEL - 1) // PANEL * PANEL
        multiply_keys(queries, keys, head_dim, logits, vectors, lanes, half)
        for i in range(rows * group):
            mine = logits + i * LOGIT_BYTES
            if softcap != 0:
                cap(mine, lanes, scale, softcap)
            if partial:
                hide(mine, lanes, positions, read_i64(q_positions + 8 * (i // group)), window)
            update_softmax(
                mine, lanes, ONE if softcap != 0 else scale, tops + 4 * i, totals + 4 * i,
                sums + 4 * head_dim * i, head_dim, in_pairs(half),
            )  # fmt: skip
        multiply_values(logits, values, head_dim, sums, vectors, lanes, half)


@njit(cache=True, error_model="numpy")
def hide(logits: int, lanes: int, positions: int, q_position: int, window: int) -> None:
    """-inf where the row at `q_position` does not see the unit."""
    for j in range(0, lanes, 16):
        place = logits + 4 * j
        store_f32(place, hidden_unless_seen(load_f32(place), positions + 8 * j, q_position, window))


@njit(cache=True, error_model="numpy")
def finish(
    sums: int, top: float, total: float, sink: float, has_sink: bool, out: int, head_dim: int, half: bool,
) -> float:  # fmt: skip
    """Write one query vector's output and return its log-sum-exp; the sink is a logit in the denominator only."""
    if has_sink:
        raised = max(top, sink)
        total = total * np.exp(top - raised) + np.exp(sink - raised)
        share = np.float32(np.exp(top - raised) / total)
        top = raised
    else:
        share = np.float32(1.0 / total) if total > 0 else ZERO
    for c in range(0, head_dim, 16):
        value = mul(load_f32(sums + 4 * c), splat(share))
        if half:
            store_bf16(out + 2 * c, value)
        else:
            store_f32(out + 4 * c, value)
    return lse_of(top, total)


KINDS = "i" * 20 + "ffb"


@kernel(KINDS)
def prefill_kernel(part: int, parts: int, place: int) -> None:
    """`attend()` on addresses; the three strides lead from one KV head to the next, in bytes.

    `sinks`, `lse`, `window`, `softcap`: 0 for none. Each of the parts has `work_size` bytes at `work`.
    """
    (
        q, k, v, q_positions, k_positions, sinks, out, lse, work, work_size, rows, task_rows, kv_heads, group, head_dim,
        units, k_stride, v_stride, positions_stride, window, scale, softcap, half,
    ) = arguments(place, KINDS)  # fmt: skip
    size = head_dim * (2 if half else 4)
    blocks = (rows + task_rows - 1) // task_rows
    most = (task_rows * group + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS
    mine = work + part * work_size
    _, _, _, _, _, _, sums, tops, totals = areas(mine, most, head_dim)
    # Later rows see more units: dealing tasks out in turn gives every thread early and late ones.
    for task in range(part, kv_heads * blocks, parts):
        head, start = task // blocks, task % blocks * task_rows
        count = min(task_rows, rows - start)
        for i in range(count * group):
            query = ((start + i // group) * kv_heads + head) * group + i % group
            pack_query(q + query * size, head_dim, half, mine + i * QUERY_BYTES)
        attend_rows(
            k + head * k_stride, v + head * v_stride,
            q_positions + 8 * start, k_positions + head * positions_stride,
            count, group, head_dim, units, window, scale, softcap, half, mine, most,
        )  # fmt: skip
        for i in range(count * group):
            query = ((start + i // group) * kv_heads + head) * group + i % group
            sink = read_f32(sinks + 4 * (head * group + i % group)) if sinks != 0 else ZERO
            value = finish(
                sums + 4 * head_dim * i, read_f32(tops + 4 * i), read_f32(totals + 4 * i),
                sink, sinks != 0, out + query * size, head_dim, half,
            )  # fmt: skip
            if lse != 0:
                write_f32(lse + 4 * query, value)


def attend_prefill(
    q: Tensor, k: Tensor, v: Tensor, q_positions: Tensor, k_positions: Tensor,
    *, scale: float, window: int | None = None, softcap: float | None = None, sinks: Tensor | None = None,
    return_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The arguments and results of `attend()`; head_dim a multiple of 32, bfloat16 or float32."""
    rows, q_heads, head_dim = q.shape
    kv_heads, units, _ = k.shape
    group, width = q_heads // kv_heads, k.itemsize
    q, q_positions = q.contiguous(), q_positions.contiguous()
    if k_positions.stride(-1) != 1:
        k_positions = k_positions.contiguous()
    sinks = None if sinks is None else sinks.float().contiguous()
    out = torch.empty_like(q)
    lse = floats(rows, q_heads) if return_lse else None
    match_torch_threads()
    parts = parts_of_work()
    task_rows = min(max(1, VECTORS // group), -(-rows * kv_heads // parts))
    most = -(-task_rows * group // TILE_ROWS) * TILE_ROWS
    work = floats(parts, work_bytes(most, head_dim) // 4)
    prefill_kernel(
        parts, q.data_ptr(), k.data_ptr(), v.data_ptr(), q_positions.data_ptr(), k_positions.data_ptr(),
        0 if sinks is None else sinks.data_ptr(), out.data_ptr(), 0 if lse is None else lse.data_ptr(),
        work.data_ptr(), 4 * work.shape[1], rows, task_rows, kv_heads, group, head_dim, units,
        k.stride(0) * width, v.stride(0) * width, 8 * k_positions.stride(0) if k_positions.dim() == 2 else 0,
        window or 0, scale, softcap or 0.0, q.dtype == torch.bfloat16,
    )  # fmt: skip
    return out, lse
