"""Few rows through decoder layers, with Numba: norm, projections, rotation, attention, MLP, without a call between.

A step of few rows is bounded by reading the weights once, if nothing else takes time, and driving a layer's modules
takes as much time as its weights do. Threads take runs of outputs of every product, and equal shares of all units that
are read.
"""

from typing import Any

import numpy as np
from numba import njit, prange, types

from winnow.kernels.attend.cpu_decode import attend_run, merge_runs
from winnow.kernels.attend.softmax import ZERO, copy
from winnow.kernels.layers import tables as t
from winnow.kernels.linear.cpu import dot, put, tiles
from winnow.kernels.packed.cpu import OUT, full_many, full_one, half_many, half_one, sums_of_groups, widen
from winnow.kernels.packed.lanes import WIDE, load_bf16
from winnow.kernels.simd import (
    HAS_BF16_DOT,
    add,
    divide,
    exp,
    fma,
    load_f32,
    maximum,
    mul,
    read_f32,
    read_i64,
    splat,
    store_bf16,
    store_f32,
    sum_lanes,
)

ONE: Any = np.float32(1.0)
LEAST: Any = np.float32(-80.0)  # below, 1 / (1 + e**-x) is 0 to every digit


@njit(cache=True, error_model="numpy")
def load(x: int, half: bool) -> Any:
    """Sixteen activations."""
    return load_bf16(x) if half else load_f32(x)


@njit(cache=True, error_model="numpy")
def store(x: int, value: Any, half: bool) -> Any:
    """Store sixteen activations; returns them as they are from now on."""
    if half:
        store_bf16(x, value)
        return load_bf16(x)
    store_f32(x, value)
    return value


@njit(cache=True, error_model="numpy")
def normalise(x: int, weight: int, count: int, eps: float, y: int, half: bool) -> None:
    """y = weight * (x / rms(x)), the quotient rounded before it is multiplied, as modules of Llama's kind do."""
    size = 2 if half else 4
    total = splat(ZERO)
    for i in range(0, count * size, 16 * size):
        value = load(x + i, half)
        total = fma(value, value, total)
    factor = splat(np.float32(1.0) / np.sqrt(sum_lanes(total) / np.float32(count) + eps))
    for i in range(0, count * size, 16 * size):
        value = store(y + i, mul(load(x + i, half), factor), half)
        store(y + i, mul(value, load(weight + i, half)), half)


@njit(cache=True, error_model="numpy")
def add_to(x: int, y: int, count: int, half: bool) -> None:
    """x += y"""
    size = 2 if half else 4
    for i in range(0, count * size, 16 * size):
        store(x + i, add(load(x + i, half), load(y + i, half)), half)


@njit(cache=True, error_model="numpy")
def rotate(x: int, cos: int, sin: int, head_dim: int, room: int, half: bool) -> None:
    """x = x * cos + turned(x) * sin for one head, each product rounded; turned: halves swapped, the first negative."""
    size = 2 if half else 4
    middle = head_dim * size // 2
    minus = splat(-ONE)
    for i in range(0, middle, 16 * size):
        j = i + middle
        first, second = load(x + i, half), load(x + j, half)
        a = store(room, mul(first, load(cos + i, half)), half)
        b = store(room, mul(mul(second, minus), load(sin + i, half)), half)
        c = store(room, mul(second, load(cos + j, half)), half)
        d = store(room, mul(first, load(sin + j, half)), half)
        store(x + i, add(a, b), half)
        store(x + j, add(c, d), half)


@njit(cache=True, error_model="numpy")
def gate_with(gate: int, up: int, first: int, last: int, half: bool) -> None:
    """gate = silu(gate) * up for outputs [first, last), multiples of sixteen."""
    size = 2 if half else 4
    for i in range(first * size, last * size, 16 * size):
        value = load(gate + i, half)
        below = add(splat(ONE), exp(mul(maximum(value, splat(LEAST)), splat(-ONE))))
        value = store(gate + i, divide(value, below), half)
        store(gate + i, mul(value, load(up + i, half)), half)


@njit(cache=True, error_model="numpy")
def product(x: int, rows: int, part: int, first: int, last: int, y: int, stride: int, room: int, half: bool) -> None:
    """y[r, o] = x[r] . weight[o] + bias[o] for outputs [first, last); `stride` bytes from one row of y to the next.

    part: the address of a product's places in the table; rows: 1 or a multiple of WIDE; room: scratch of one thread.
    """
    if first >= last:
        return
    data, row_bytes, outs = read_i64(part + 8 * t.DATA), read_i64(part + 8 * t.ROW_BYTES), read_i64(part + 8 * t.OUTS)
    kind, bias = read_i64(part + 8 * t.KIND), read_i64(part + 8 * t.BIAS)
    if kind == t.DENSE:
        if rows == 1:
            for o in range(first, last):
                put(dot(x, data + o * row_bytes, row_bytes, half), bias, y, o, o, half)
            return
        tiles(x, data, room, rows, outs, first, last, row_bytes, half)
        for r in range(rows):
            for o in range(first, last):
                put(read_f32(room + 4 * (r * outs + o)), bias, y + r * stride, o, o, half)
        return
    columns, group = read_i64(part + 8 * t.COLUMNS), read_i64(part + 8 * t.GROUP)
    minima, dots = read_i64(part + 8 * t.MINIMA) != 0, half and HAS_BF16_DOT
    groups = columns // group
    padded = (groups + 15) // 16 * 16
    out, sums = room, room + OUT
    if minima or (dots and kind < 2):
        sums_of_groups(x, rows, columns, group, padded, half, sums)
    source, row = x, 2 * columns
    if not dots:
        source, row = sums + 4 * rows * padded, 4 * columns
        widen(x, rows * columns, half, source)
    tile = 1 if rows == 1 else WIDE
    for start in range(first, last, tile):
        o = max(0, min(start, last - tile))  # the last tile overlaps the one before
        weight = data + o * row_bytes
        for r in range(0, rows, WIDE):
            here, mine = source + r * row, sums + 4 * r * padded
            if rows > 1 and dots:
                half_many(here, row, weight, row_bytes, groups, kind, minima, mine, 4 * padded, out)
            elif rows > 1:
                full_many(here, row, weight, row_bytes, groups, kind, minima, mine, 4 * padded, out)
            elif dots:
                half_one(here, row, weight, row_bytes, groups, kind, minima, mine, 4 * padded, out)
            else:
                full_one(here, row, weight, row_bytes, groups, kind, minima, mine, 4 * padded, out)
            for i in range(tile):
                for j in range(tile):
                    put(read_f32(out + 4 * (tile * i + j)), bias, y + (r + i) * stride, o + j, o + j, half)


@njit(cache=True, error_model="numpy")
def place_row(
    row: int, limited: int, layer: int, place: int, q_heads: int, kv_heads: int, head_dim: int, eps: float, room: int,
    half: bool,
) -> None:  # fmt: skip
    """Norm and rotate the queries and keys of one row, in place, and put its units where they belong.

    row: [q_heads + 2 * kv_heads, head_dim]; limited: [q_heads, head_dim], for queries rotated another way; layer,
    place: addresses in their tables.
    """
    wide = head_dim * (2 if half else 4)
    cos, other = read_i64(place + 8 * t.COS), read_i64(place + 8 * t.LIMITED_COS)
    for head in range(q_heads + kv_heads):
        mine = row + head * wide
        norm = read_i64(layer + 8 * (t.QUERY_NORM if head < q_heads else t.KEY_NORM))
        if norm != 0:
            normalise(mine, norm, head_dim, eps, mine, half)
        if other != 0 and head < q_heads:
            copy(mine, limited + head * wide, wide)
            rotate(limited + head * wide, other, read_i64(place + 8 * t.LIMITED_SIN), head_dim, room, half)
        if cos != 0:
            rotate(mine, cos, read_i64(place + 8 * t.SIN), head_dim, room, half)
    stride = read_i64(place + 8 * t.STRIDE)
    for head in range(kv_heads):
        key = row + (q_heads + head) * wide
        copy(key, read_i64(place + 8 * t.KEYS) + head * stride, wide)
        copy(key + kv_heads * wide, read_i64(place + 8 * t.VALUES) + head * stride, wide)


@njit(  # type: ignore[call-overload]
    types.void(*(types.int64,) * 2, *(types.float32,) * 2, types.boolean),
    # Numba would make one loop of two that follow each other: of memory that is named by addresses it sees no use.
    cache=True, parallel={"fusion": False}, nogil=True, error_model="numpy",
)  # fmt: skip
def layers_kernel(frame: int, layers: int, eps: float, scale: float, half: bool) -> None:
    """Take the rows of a frame (see `tables.py`) through its layers.

    Weights of norms and dense products have the dtype of activations, bfloat16 (`half`) or float32.
    """
    rows, live, width = read_i64(frame + 8 * t.ROWS), read_i64(frame + 8 * t.LIVE), read_i64(frame + 8 * t.WIDTH)
    q_heads, kv_heads = read_i64(frame + 8 * t.Q_HEADS), read_i64(frame + 8 * t.KV_HEADS)
    head_dim, mlp = read_i64(frame + 8 * t.HEAD_DIM), read_i64(frame + 8 * t.MLP)
    threads, hidden = read_i64(frame + 8 * t.THREADS), read_i64(frame + 8 * t.HIDDEN)
    scratch, room = read_i64(frame + 8 * t.SCRATCH), read_i64(frame + 8 * t.SCRATCH_BYTES)
    work, work_bytes = read_i64(frame + 8 * t.WORK), read_i64(frame + 8 * t.WORK_BYTES)
    size, group = 2 if half else 4, q_heads // kv_heads
    queries, units = q_heads * head_dim, kv_heads * head_dim
    projected = queries + 2 * units
    normed = read_i64(frame + 8 * t.BUFFER)
    qkv = normed + size * rows * width
    limited = qkv + size * rows * projected
    seen = limited + size * rows * queries
    out = seen + size * rows * queries
    gate = out + size * rows * width
    up = gate + size * rows * mlp
    for index in range(layers):
        layer = read_i64(frame + 8 * t.LAYERS) + 8 * t.LAYER * index
        for r in range(rows):
            x = hidden + size * r * width
            normalise(x, read_i64(layer + 8 * t.NORM), width, eps, normed + size * r * width, half)
        for thread in prange(threads):
            mine = scratch + thread * room
            a, b = projected * thread // threads, projected * (thread + 1) // threads
            product(normed, rows, layer + 8 * t.QUERY, a, min(b, queries), qkv, size * projected, mine, half)
            product(normed, rows, layer + 8 * t.KEY, max(a - queries, 0), min(b - queries, units),
                    qkv + size * queries, size * projected, mine, half)  # fmt: skip
            product(normed, rows, layer + 8 * t.VALUE, max(a - queries - units, 0), b - queries - units,
                    qkv + size * (queries + units), size * projected, mine, half)  # fmt: skip
        for r in range(live):
            place = read_i64(frame + 8 * t.PLACES) + 8 * t.PLACE * (index * live + r)
            place_row(
                qkv + size * r * projected, limited + size * r * queries, layer, place, q_heads, kv_heads, head_dim,
                eps, scratch, half,
            )  # fmt: skip
        shares = read_i64(frame + 8 * t.SHARES) + 8 * (threads + 1) * index
        base = read_i64(shares)
        for thread in prange(threads):
            for number in range(read_i64(shares + 8 * thread), read_i64(shares + 8 * (thread + 1))):
                run = read_i64(frame + 8 * t.RUNS) + 8 * t.RUN * number
                reader, mine = read_i64(run + 8 * t.READER), work + (number - base) * work_bytes
                r, first_query = reader // kv_heads, reader % kv_heads * group * head_dim
                query = qkv + size * (r * projected + first_query)
                if read_i64(run + 8 * t.LIMITED) != 0:
                    query = limited + size * (r * queries + first_query)
                copy(query, mine, size * group * head_dim)
                attend_run(
                    read_i64(run + 8 * t.RUN_KEYS), read_i64(run + 8 * t.RUN_VALUES), 0, read_i64(run + 8 * t.UNITS),
                    head_dim, 1, group, 0, 0, 0, scale, ZERO, False, half, mine, 0, 0,
                )  # fmt: skip
        heads = read_i64(frame + 8 * t.HEADS) + 8 * (live * kv_heads + 1) * index
        for reader in range(live * kv_heads):
            number, stop = read_i64(heads + 8 * reader), read_i64(heads + 8 * (reader + 1))
            for vector in range(group):
                merge_runs(
                    work + (number - base) * work_bytes, work_bytes, stop - number, vector, group, head_dim, ZERO,
                    False, seen + size * head_dim * (reader * group + vector), half,
                )  # fmt: skip
        for thread in prange(threads):
            a, b = width * thread // threads, width * (thread + 1) // threads
            product(seen, rows, layer + 8 * t.OUTPUT, a, b, out, size * width, scratch + thread * room, half)
        for r in range(rows):
            x = hidden + size * r * width
            add_to(x, out + size * r * width, width, half)
            normalise(x, read_i64(layer + 8 * t.POST_NORM), width, eps, normed + size * r * width, half)
        for thread in prange(threads):
            mine = scratch + thread * room
            a, b = mlp // 16 * thread // threads * 16, mlp // 16 * (thread + 1) // threads * 16
            b = mlp if thread + 1 == threads else b
            product(normed, rows, layer + 8 * t.GATE, a, b, gate, size * mlp, mine, half)
            product(normed, rows, layer + 8 * t.UP, a, b, up, size * mlp, mine, half)
            for r in range(rows):
                gate_with(gate + size * r * mlp, up + size * r * mlp, a, b, half)
        for thread in prange(threads):
            a, b = width * thread // threads, width * (thread + 1) // threads
            product(gate, rows, layer + 8 * t.DOWN, a, b, out, size * width, scratch + thread * room, half)
        for r in range(rows):
            add_to(hidden + size * r * width, out + size * r * width, width, half)


def room_bytes(rows: int, widest: int) -> int:
    """Scratch of one thread for products of `rows` rows with at most `widest` columns or outputs."""
    return OUT + 4 * rows * (2 * widest + 16)
