"""Attention of one row over units that are held as codes, with Numba: what is read is the codes, once.

Of units that lie side by side no float of a key or a value is ever made. Of keys whose groups are of units the scales
go into the queries, once a group, and what minima add is the same for all units of one; of values whose groups are of
channels the scales go into the weights. In the other two cases scales multiply sums over a group. Where codes meet
integers, queries and weights are rounded to fifteen bits, the largest of a vector being the largest of these. Units
that are numbered one by one, as selections have them, become floats, a piece at a time. Where codes are of transformed
keys, queries are transformed too, once for every run that a thread reads; or the keys that become floats, back.
"""

from typing import Any

import numpy as np
from numba import njit

from winnow.kernels.attend.cpu_decode import PIECE, add_weighted, areas, hand_out, padded, take_dots
from winnow.kernels.attend.softmax import HIDDEN, ONE, ZERO, cap, fill, update_softmax
from winnow.kernels.packed.lanes import load_f16
from winnow.kernels.quantize import BLOCK
from winnow.kernels.quantize import tables as q
from winnow.kernels.quantize.lanes import (
    CHUNK,
    MOST,
    channels_of_key,
    channels_of_value,
    read_byte,
    read_half,
    store_levels,
    sums_in_bytes,
    sums_in_floats,
)
from winnow.kernels.simd.arithmetic import add, fma, max_lanes, maximum, mul, splat, sum_lanes
from winnow.kernels.simd.kinds import HAS_BF16_DOT, HAS_BYTE_DOT
from winnow.kernels.simd.memory import load_bf16, load_f32, read_f32, read_i64, store_bf16, store_f32, write_f32

bytes_1x1, bytes_2x1, bytes_4x1 = sums_in_bytes(1, 1), sums_in_bytes(2, 1), sums_in_bytes(4, 1)
bytes_1x2, bytes_2x2 = sums_in_bytes(1, 2), sums_in_bytes(2, 2)


def codes_floats(group: int, head_dim: int) -> int:
    """The memory that `attend_codes` takes beside that of its task, in float32."""
    vectors, longest = -(-group // 4) * 4, max(head_dim, PIECE)
    # A piece of floats; queries, what is multiplied with codes, as floats and as bytes, factors and sums of groups.
    return 2 * PIECE * head_dim + vectors * (head_dim + 2 * longest + 2 + head_dim // BLOCK + 2 * BLOCK + 1)


@njit(cache=True, error_model="numpy")
def row_facts(side: int) -> tuple[int, int, int]:
    """Of the keys or the values: bits of a code, codes of a group, bytes of a row of codes."""
    return read_i64(side + 8 * q.BITS), read_i64(side + 8 * q.GROUP), read_i64(side + 8 * q.ROW_BYTES)


@njit(cache=True, error_model="numpy")
def facts_of(side: int, head: int) -> tuple[int, int, int, int, bool]:
    """Of the keys or the values of a KV head: codes, scales, the bytes from one row of these to the next and to minima,
    and whether groups are of units."""
    codes = read_i64(side + 8 * q.CODES) + head * read_i64(side + 8 * q.CODES_STRIDE)
    scales = read_i64(side + 8 * q.SCALES) + head * read_i64(side + 8 * q.SCALES_STRIDE)
    row, minima = read_i64(side + 8 * q.ROW), read_i64(side + 8 * q.MINIMA)
    return codes, scales, row, minima, read_i64(side + 8 * q.BY_CHANNEL) != 0


@njit(cache=True, error_model="numpy")
def hadamard(x: int, size: int) -> None:
    """`quantize.hadamard` of float32 in place, a power of two of at least 16."""
    step = 1
    while step < BLOCK:
        for i in range(0, size, 2 * step):
            for j in range(4 * i, 4 * (i + step), 4):
                first, second = read_f32(x + j), read_f32(x + j + 4 * step)
                write_f32(x + j, first + second)
                write_f32(x + j + 4 * step, first - second)
        step *= 2
    while step < size:
        for i in range(0, size, 2 * step):
            for j in range(4 * i, 4 * (i + step), 4 * BLOCK):
                first, second = load_f32(x + j), load_f32(x + j + 4 * step)
                store_f32(x + j, add(first, second))
                store_f32(x + j + 4 * step, fma(second, splat(-ONE), first))
        step *= 2
    root: Any = np.float32(1 / np.sqrt(size))
    for j in range(0, 4 * size, 4 * BLOCK):
        store_f32(x + j, mul(load_f32(x + j), splat(root)))


@njit(cache=True, error_model="numpy")
def sums_with(
    vectors: int, exact: bool, codes: int, blocks: int, beside: int, stride: int, plane: int, planes: int, bits: int,
    x: int, length: int, start: int, step: int, further: int, count: int, lifts: int, zero: int, out: int,
    out_stride: int, ahead: int,
) -> None:  # fmt: skip
    """out[i, b, lane] += lifts[i] + sum over chunks and `planes` of their planes, from `plane` on, of codes times
    values of x[i] from `start` on, `step` of them from chunk to chunk, `further` from plane to plane.

    blocks: 1 or 2, `beside` bytes apart. x: what `make_ready` has made of rows of `length`. zero: the address of a 0.
    """
    if exact:
        for i in range(vectors):
            for b in range(blocks):
                for p in range(planes):
                    shift, row = (plane + p) * bits, x + 4 * (i * length + start + p * further)
                    lift, mine = lifts + 4 * i, out + i * out_stride + 4 * BLOCK * b
                    lift = lift if p == 0 else zero
                    sums_in_floats(codes + b * beside, stride, shift, bits, row, 4 * step, count, lift, mine)
        return
    # Behind the floats of all vectors lie their bytes, [2, vectors, length], then a factor for each.
    levels, level, shift = x + 4 * padded(vectors) * length, padded(vectors) * length, plane * bits
    for i in range(0, vectors, 4):
        first, factors, lift = levels + i * length + start, levels + 2 * level + 4 * i, lifts + 4 * i
        mine, here = out + i * out_stride, min(vectors - i, 4)
        if here == 1 and blocks == 2:
            bytes_1x2(
                codes, beside, stride, shift, bits, planes, first, length, level, step, further, count, factors, lift,
                mine, out_stride, ahead,
            )  # fmt: skip
        elif here == 2 and blocks == 2:
            bytes_2x2(
                codes, beside, stride, shift, bits, planes, first, length, level, step, further, count, factors, lift,
                mine, out_stride, ahead,
            )  # fmt: skip
        else:
            for b in range(blocks):
                one, there = codes + b * beside, mine + 4 * BLOCK * b
                if here == 1:
                    bytes_1x1(
                        one, 0, stride, shift, bits, planes, first, length, level, step, further, count, factors, lift,
                        there, out_stride, ahead,
                    )  # fmt: skip
                elif here == 2:
                    bytes_2x1(
                        one, 0, stride, shift, bits, planes, first, length, level, step, further, count, factors, lift,
                        there, out_stride, ahead,
                    )  # fmt: skip
                else:
                    bytes_4x1(
                        one, 0, stride, shift, bits, planes, first, length, level, step, further, count, factors, lift,
                        there, out_stride, ahead,
                    )  # fmt: skip


@njit(cache=True, error_model="numpy")
def make_ready(x: int, i: int, vectors: int, length: int, top: float) -> None:
    """Behind the float32 [vectors, length] at x, those of i as two bytes each, and by what they are to be multiplied.

    top: the largest of their absolute values.
    """
    level = padded(vectors) * length
    levels, row = x + 4 * level, x + 4 * i * length
    inverse: Any = np.float32(MOST) / top if top > ZERO else ZERO
    write_f32(levels + 2 * level + 4 * i, top / np.float32(MOST))
    for c in range(0, length, 16):
        place = levels + i * length + c
        store_levels(place, place + level, mul(load_f32(row + 4 * c), splat(inverse)))


@njit(cache=True, error_model="numpy")
def key_logits(
    form: int, head: int, first: int, count: int, head_dim: int, vectors: int, exact: bool, query: int, room: int,
    logits: int,
) -> None:  # fmt: skip
    """logits[i, j] = query[i] . key[j] of `count` slots from `first` on, whole blocks; queries in float32.

    Where groups are of channels, `ready_for_tokens` has made `room` ready.
    """
    bits, group, size = row_facts(form)
    codes, scales, row, minima, by_channel = facts_of(form, head)
    all_of, known = padded(vectors), -1  # the group for which `room` is ready
    adds = room + 4 * all_of * (2 * max(head_dim, PIECE) + 2)
    sums = adds + 4 * all_of * (head_dim // BLOCK)
    nothing = sums + 8 * BLOCK * all_of
    for i in range(vectors):
        fill(logits + 4 * i * PIECE, ZERO, 4 * count)
    at = 0
    while at < count:
        # Two blocks at once, where both are there and, if their groups are of units, of one group.
        two = at + BLOCK < count and (not by_channel or (first + at) % group + BLOCK < group)
        blocks = 2 if two else 1
        block, place = codes + (first + at) * size, scales + (first + at) // group * row
        mine = logits + 4 * at
        if by_channel:
            if known != (first + at) // group:
                known = (first + at) // group
                for i in range(vectors):
                    total, most = splat(ZERO), splat(ZERO)
                    for c in range(0, head_dim, 16):
                        value = load_f32(query + 4 * (i * head_dim + c))
                        total = fma(value, load_f16(place + minima + 2 * c, BLOCK), total)
                        value = mul(value, load_f16(place + 2 * c, BLOCK))
                        store_f32(room + 4 * (i * head_dim + c), value)
                        most = maximum(most, maximum(value, mul(value, splat(-ONE))))
                    write_f32(adds + 4 * i, sum_lanes(total))
                    if not exact:
                        make_ready(room, i, vectors, head_dim, max_lanes(most))
            sums_with(
                vectors, exact, block, blocks, BLOCK * size, CHUNK, 0, 8 // bits, bits, room, head_dim, 0, 4, size,
                size // 4, adds, nothing, mine, 4 * PIECE, PIECE * size,
            )  # fmt: skip
        else:
            groups = head_dim // group
            for g in range(groups):
                fill(sums, ZERO, 8 * BLOCK * vectors)
                c = g * group
                while c < (g + 1) * group:  # a group may go on in the next plane
                    p = c // size
                    many = min((g + 1) * group, (p + 1) * size) - c
                    sums_with(
                        vectors, exact, block + (c - p * size) // 4 * CHUNK, blocks, BLOCK * size, CHUNK, p, 1, bits,
                        room, head_dim, c, 4, 0, many // 4, nothing, nothing, sums, 8 * BLOCK, PIECE * size,
                    )  # fmt: skip
                    c += many
                for i in range(vectors):
                    lift = splat(read_f32(adds + 4 * (i * groups + g)))
                    for b in range(0, blocks * BLOCK, BLOCK):
                        place, here = scales + g * row + 2 * (first + at + b), mine + 4 * (i * PIECE + b)
                        total = load_f32(sums + 4 * (2 * BLOCK * i + b))
                        total = fma(load_f16(place, BLOCK), total, load_f32(here))
                        store_f32(here, fma(load_f16(place + minima, BLOCK), lift, total))
        at += blocks * BLOCK


@njit(cache=True, error_model="numpy")
def ready_for_tokens(form: int, head_dim: int, vectors: int, exact: bool, query: int, room: int) -> None:
    """What `key_logits` takes where groups are of channels: the queries, and their sums over each group."""
    group, all_of = read_i64(form + 8 * q.GROUP), padded(vectors)
    adds = room + 4 * all_of * (2 * max(head_dim, PIECE) + 2)
    for i in range(vectors):
        most = splat(ZERO)
        for g in range(head_dim // group):
            total = splat(ZERO)
            for c in range(g * group, (g + 1) * group, 16):
                value = load_f32(query + 4 * (i * head_dim + c))
                store_f32(room + 4 * (i * head_dim + c), value)
                total = add(total, value)
                most = maximum(most, maximum(value, mul(value, splat(-ONE))))
            write_f32(adds + 4 * (i * (head_dim // group) + g), sum_lanes(total))
        if not exact:
            make_ready(room, i, vectors, head_dim, max_lanes(most))


@njit(cache=True, error_model="numpy")
def add_values(
    form: int, head: int, first: int, count: int, head_dim: int, vectors: int, exact: bool, weights: int, room: int,
    sums: int,
) -> None:  # fmt: skip
    """sums[i] += sum over j of weights[i, j] * value[j] of `count` slots from `first` on, whole blocks."""
    bits, group, size = row_facts(form + 8 * q.SIDE)
    codes, scales, row, minima, by_channel = facts_of(form + 8 * q.SIDE, head)
    codes, planes, all_of = codes + first * size, 8 // bits, padded(vectors)
    adds = room + 4 * all_of * (2 * max(head_dim, PIECE) + 2)
    got, stride = adds + 4 * all_of * (head_dim // BLOCK), 4 * head_dim
    nothing = got + 8 * BLOCK * all_of
    at = 0
    while at < count:  # as far as scales are the same, where groups are of units
        many = min(count - at, group - (first + at) % group) if by_channel else count
        place = scales + (first + at) // group * row
        for g in range(1 if by_channel else head_dim // group):
            if not by_channel:
                place = scales + g * row + 2 * first
            for i in range(vectors):
                total, most = splat(ZERO), splat(ZERO)
                for j in range(0, many, 16):
                    value = load_f32(weights + 4 * (i * PIECE + at + j))
                    if by_channel:
                        total = add(value, total)
                    else:
                        total = fma(value, load_f16(place + minima + 2 * j, BLOCK), total)
                        value = mul(value, load_f16(place + 2 * j, BLOCK))
                    store_f32(room + 4 * (i * PIECE + j), value)
                    most = maximum(most, value)
                write_f32(adds + 4 * i, sum_lanes(total))
                if not exact:
                    make_ready(room, i, vectors, PIECE, max_lanes(most))
            c, end = 0 if by_channel else g * group, head_dim if by_channel else (g + 1) * group
            while c < end:
                chunk, mine, blocks = codes + at * size + c // BLOCK * CHUNK, sums + 4 * c, min(2, (end - c) // BLOCK)
                if by_channel:
                    fill(got, ZERO, 8 * BLOCK * vectors)
                sums_with(
                    vectors, exact, chunk, blocks, CHUNK, stride, 0, planes, bits, room, PIECE, 0, 4 * planes, 4,
                    many // (4 * planes), nothing if by_channel else adds, nothing, got if by_channel else mine,
                    8 * BLOCK if by_channel else stride, PIECE * size,
                )  # fmt: skip
                if by_channel:
                    for i in range(vectors):
                        lift = splat(read_f32(adds + 4 * i))
                        for b in range(0, blocks * BLOCK, BLOCK):
                            here, scale = mine + stride * i + 4 * b, place + 2 * (c + b)
                            total = load_f32(got + 4 * (2 * BLOCK * i + b))
                            total = fma(load_f16(scale, BLOCK), total, load_f32(here))
                            store_f32(here, fma(load_f16(scale + minima, BLOCK), lift, total))
                c += blocks * BLOCK
        at += many


@njit(cache=True, error_model="numpy")
def unpack_codes(block: int, unit: int, side: int, bits: int, size: int, head_dim: int, row: int) -> None:
    """The codes of the key (side 0) or the value (1) of one unit of a block of sixteen, as float32 [head_dim]."""
    planes = 8 // bits
    if side == 0:
        for p in range(planes):
            for i in range(0, size - size % BLOCK, BLOCK):
                codes = channels_of_key(block + (i >> 2) * CHUNK + 4 * unit, p * bits, bits)
                store_f32(row + 4 * (p * size + i), codes)
            for i in range(size - size % BLOCK, size):
                code = (read_byte(block + (i >> 2) * CHUNK + 4 * unit + (i & 3)) >> (p * bits)) & (2**bits - 1)
                write_f32(row + 4 * (p * size + i), np.float32(code))
        return
    shift, chunk = unit // 4 % planes * bits, block + unit // (4 * planes) * (head_dim // BLOCK) * CHUNK
    for c in range(0, head_dim, BLOCK):
        store_f32(row + 4 * c, channels_of_value(chunk + (c >> 4) * CHUNK, 8 * (unit % 4) + shift, bits))


@njit(cache=True, error_model="numpy")
def unpack_units(
    form: int, side: int, head: int, first: int, index: int, count: int, head_dim: int, out: int, half: bool, row: int
) -> None:
    """Keys (side 0) or values (1) as floats, [count, head_dim]: those in slots `first` and the int64 at `index`.

    row: room for one of them in float32.
    """
    bits, group, size = row_facts(form + 8 * q.SIDE * side)
    codes, scales, step, minima, by_channel = facts_of(form + 8 * q.SIDE * side, head)
    back = side == 0 and read_i64(form + 8 * q.HADAMARD) != 0
    for j in range(count):
        slot = first + read_i64(index + 8 * j)
        unpack_codes(codes + slot // BLOCK * BLOCK * size, slot % BLOCK, side, bits, size, head_dim, row)
        mine = scales + (slot // group * step if by_channel else 2 * slot)
        for c in range(0, head_dim, BLOCK):
            code = load_f32(row + 4 * c)
            if by_channel:
                value = fma(load_f16(mine + 2 * c, BLOCK), code, load_f16(mine + minima + 2 * c, BLOCK))
            else:
                place = mine + c // group * step
                value = fma(splat(read_half(place)), code, splat(read_half(place + minima)))
            store_f32(row + 4 * c, value)
        if back:
            hadamard(row, head_dim)
        for c in range(0, head_dim, BLOCK):
            if half:
                store_bf16(out + 2 * (j * head_dim + c), load_f32(row + 4 * c))
            else:
                store_f32(out + 4 * (j * head_dim + c), load_f32(row + 4 * c))


@njit(cache=True, error_model="numpy")
def hide_outside(logits: int, low: int, high: int) -> None:
    """-inf in all of a piece's logits but those in [low, high)."""
    for j in range(low):
        write_f32(logits + 4 * j, HIDDEN)
    for j in range(high, (high + 15) // 16 * 16):
        write_f32(logits + 4 * j, HIDDEN)


@njit(cache=True, error_model="numpy")
def attend_codes(
    form: int, head: int, first: int, start: int, stop: int, head_dim: int, group: int, scale: float, softcap: float,
    half: bool, work: int, kept: int, kept_row: int, index: int, room: int,
) -> None:  # fmt: skip
    """`attend_run` of one row over units that are held as codes: those numbered [start, stop), unit 0 being in slot
    `first`; index: as there. form: the address of a slab's facts; room: `codes_floats` of memory."""
    size, vectors, exact = head_dim * (2 if half else 4), group, not half or not HAS_BYTE_DOT
    queries, logits, sums, tops, totals = areas(work, padded(vectors), head_dim)
    fill(sums, ZERO, tops - sums)
    fill(tops, HIDDEN, totals - tops)
    fill(totals, ZERO, totals - tops)
    piece, wide = room, room + 4 * 2 * PIECE * head_dim
    ready = wide + 4 * padded(vectors) * head_dim
    nothing = ready + 4 * padded(vectors) * (2 * max(head_dim, PIECE) + 2 + head_dim // BLOCK + 2 * BLOCK)
    for i in range(padded(vectors)):
        write_f32(nothing + 4 * i, ZERO)
    for i in range(0, vectors * head_dim, 16):
        store_f32(wide + 4 * i, load_bf16(queries + 2 * i) if half else load_f32(queries + 4 * i))
    if index == 0 and read_i64(form + 8 * q.HADAMARD) != 0:
        for i in range(vectors):
            hadamard(wide + 4 * i * head_dim, head_dim)
    # Blocks are read whole, and what is not meant is not seen.
    at, end = (start, stop) if index != 0 else ((first + start) // BLOCK * BLOCK, first + stop)
    while at < end:
        count = min(PIECE, end - at)
        low, high = (0, count) if index != 0 else (max(first + start - at, 0), count)
        blocks = (count + 15) // 16 * 16
        if index != 0:
            unpack_units(form, 0, head, first, index + 8 * at, count, head_dim, piece, half, wide)
            take_dots(queries, piece, piece, count, size, logits, vectors, half)
        else:
            if read_i64(form + 8 * q.BY_CHANNEL) == 0:
                ready_for_tokens(form, head_dim, vectors, exact, wide, ready)
            key_logits(form, head, at, blocks, head_dim, vectors, exact, wide, ready, logits)
        for i in range(vectors):
            mine = logits + 4 * PIECE * i
            hide_outside(mine, low, high)
            if softcap != 0:
                cap(mine, blocks, scale, softcap)
                hide_outside(mine, low, high)
            factor = ONE if softcap != 0 else scale
            if kept != 0:
                number = at - first if index == 0 else at
                hand_out(mine + 4 * low, factor, kept + i * kept_row + 4 * (number + low), high - low)
            update_softmax(
                mine, blocks, factor, tops + 4 * i, totals + 4 * i, sums + 4 * head_dim * i, head_dim,
                half and HAS_BF16_DOT and index != 0,
            )  # fmt: skip
        if index != 0:
            unpack_units(form, 1, head, first, index + 8 * at, count, head_dim, piece, half, wide)
            add_weighted(logits, piece, piece, count, head_dim, sums, vectors, half)
        else:
            add_values(form, head, at, blocks, head_dim, vectors, exact, logits, ready, sums)
        at += count
