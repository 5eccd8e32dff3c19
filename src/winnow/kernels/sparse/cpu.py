"""Attention over cells, with Numba: the two matrix products and the running softmax of `attend/cpu_prefill.py`.

A task is a block of rows of one query head. It walks along its cells, notes where their units lie, and once there are
`BLOCK` of them packs and multiplies these: units that lie side by side as they lie, others gathered before. Only
batches that hold a unit behind the block's first row are masked.
"""

import torch
from numba import njit
from torch import Tensor

from winnow.kernels.attend.cpu_prefill import (
    BLOCK,
    LOGIT_BYTES,
    NOWHERE,
    QUERY_BYTES,
    areas,
    finish,
    hide,
    in_pairs,
    multiply_keys,
    multiply_values,
    pack_keys,
    pack_query,
    pack_values,
    work_bytes,
)
from winnow.kernels.attend.softmax import HIDDEN, ONE, ZERO, cap, copy, fill, update_softmax
from winnow.kernels.dealt import arguments, kernel
from winnow.kernels.floats import floats
from winnow.kernels.launch import match_torch_threads, parts_of_work
from winnow.kernels.simd.memory import read_f32, read_flag, read_i64, write_i64
from winnow.kernels.simd.products import PANEL, TILE_ROWS
from winnow.kernels.sparse.cells import Cells


@njit(cache=True, error_model="numpy")
def gather(units: int, places: int, count: int, lanes: int, size: int, staging: int) -> int:
    """Where the units at `count` places lie one after the other, `lanes` of them with zeros for those that are none."""
    if count == BLOCK and read_i64(places + 8 * (BLOCK - 1)) - read_i64(places) == BLOCK - 1:
        return units + read_i64(places) * size
    for j in range(count):
        copy(units + read_i64(places + 8 * j) * size, staging + j * size, size)
    fill(staging + count * size, ZERO, (lanes - count) * size)
    return staging


@njit(cache=True, error_model="numpy")
def take(
    k: int, v: int, own: int, rows: int, head_dim: int, count: int, scale: float, softcap: float, half: bool, work: int,
    vectors: int,
) -> None:  # fmt: skip
    """One batch of units, those at the places that are noted, for all rows of a task, whose first unit is at `own`."""
    queries, staging, keys, values, places, logits, sums, tops, totals = areas(work, vectors, head_dim)
    size = head_dim * (2 if half else 4)
    lanes = (count + PANEL - 1) // PANEL * PANEL
    partial = count < lanes or read_i64(places + 8 * (count - 1)) > own
    for j in range(count, lanes):
        write_i64(places + 8 * j, NOWHERE)
    pack_keys(gather(k, places, count, lanes, size, staging), head_dim, half, keys)
    pack_values(gather(v, places, count, lanes, size, staging), head_dim, half, values)
    multiply_keys(queries, keys, head_dim, logits, vectors, lanes, half)
    for i in range(rows):
        mine = logits + i * LOGIT_BYTES
        if softcap != 0:
            cap(mine, lanes, scale, softcap)
        if partial:
            hide(mine, lanes, places, own + i, 0)
        update_softmax(
            mine, lanes, ONE if softcap != 0 else scale, tops + 4 * i, totals + 4 * i, sums + 4 * head_dim * i,
            head_dim, in_pairs(half),
        )  # fmt: skip
    multiply_values(logits, values, head_dim, sums, vectors, lanes, half)


@njit(cache=True, error_model="numpy")
def attend_task(
    k: int, v: int, seen: int, cells: int, width: int, front: int, own: int, rows: int, head_dim: int, scale: float,
    softcap: float, half: bool, work: int, vectors: int,
) -> None:  # fmt: skip
    """The softmax of one task over those of its `cells` that a byte at `seen` says it sees, in `work`."""
    _, _, _, _, places, _, sums, tops, totals = areas(work, vectors, head_dim)
    fill(sums, ZERO, 4 * vectors * head_dim)
    fill(tops, HIDDEN, totals - tops)
    fill(totals, ZERO, totals - tops)
    stop, count = own + rows, 0
    for cell in range(min(cells, (stop + front + width - 1) // width)):
        if not read_flag(seen + cell):
            continue
        for unit in range(max(0, cell * width - front), min(stop, (cell + 1) * width - front)):
            write_i64(places + 8 * count, unit)
            count += 1
            if count == BLOCK:
                take(k, v, own, rows, head_dim, count, scale, softcap, half, work, vectors)
                count = 0
    if count:
        take(k, v, own, rows, head_dim, count, scale, softcap, half, work, vectors)


KINDS = "i" * 20 + "ffb"


@kernel(KINDS)
def cells_kernel(part: int, parts: int, place: int) -> None:
    """`attend_cells()` on addresses; the strides lead from one KV head to the next, in bytes.

    seen: [q_heads, blocks, cells]. `sinks`, `softcap`: 0 for none. Each of the parts has `work_size` bytes at `work`.
    """
    (
        seen, cells, q, k, v, sinks, out, work, work_size, rows, block, width, front, q_heads, kv_heads, head_dim,
        units, k_stride, v_stride, vectors, scale, softcap, half,
    ) = arguments(place, KINDS)  # fmt: skip
    size = head_dim * (2 if half else 4)
    blocks = (rows + block - 1) // block
    mine = work + part * work_size
    _, _, _, _, _, _, sums, tops, totals = areas(mine, vectors, head_dim)
    # Later rows may read more, and heads differ: dealing tasks out in turn gives every thread some of each.
    for task in range(part, q_heads * blocks, parts):
        head, start = task // blocks, task % blocks * block
        count, group = min(block, rows - start), q_heads // kv_heads
        for i in range(count):
            pack_query(q + ((start + i) * q_heads + head) * size, head_dim, half, mine + i * QUERY_BYTES)
        attend_task(
            k + head // group * k_stride, v + head // group * v_stride, seen + task * cells, cells, width, front,
            units - rows + start, count, head_dim, scale, softcap, half, mine, vectors,
        )  # fmt: skip
        sink = read_f32(sinks + 4 * head) if sinks != 0 else ZERO
        for i in range(count):
            finish(
                sums + 4 * head_dim * i, read_f32(tops + 4 * i), read_f32(totals + 4 * i), sink, sinks != 0,
                out + ((start + i) * q_heads + head) * size, head_dim, half,
            )  # fmt: skip


def attend_cells_cpu(
    q: Tensor, k: Tensor, v: Tensor, cells: Cells, *, scale: float, softcap: float | None, sinks: Tensor | None
) -> Tensor:
    """The arguments and results of `attend_cells()`; head_dim a multiple of 32, bfloat16 or float32."""
    rows, q_heads, head_dim = q.shape
    kv_heads, units, _ = k.shape
    q, width = q.contiguous(), k.itemsize
    sinks = None if sinks is None else sinks.float().contiguous()
    out = torch.empty_like(q)
    match_torch_threads()
    parts = parts_of_work()
    vectors = -(-min(cells.rows, rows) // TILE_ROWS) * TILE_ROWS
    work = floats(parts, work_bytes(vectors, head_dim) // 4)
    seen = cells.seen.contiguous()
    cells_kernel(
        parts, seen.data_ptr(), seen.shape[2], q.data_ptr(), k.data_ptr(), v.data_ptr(),
        0 if sinks is None else sinks.data_ptr(), out.data_ptr(), work.data_ptr(), 4 * work.shape[1], rows,
        cells.rows, cells.width, cells.front, q_heads, kv_heads, head_dim, units, k.stride(0) * width,
        v.stride(0) * width, vectors, scale, softcap or 0.0, q.dtype == torch.bfloat16,
    )  # fmt: skip
    return out
