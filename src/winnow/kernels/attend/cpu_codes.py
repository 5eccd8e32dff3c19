"""Attention of one row over units that are held as codes, with Numba: what is read is the codes, once.

Keys whose groups are of units are never made: scales go into the queries, once a group, and a minimum adds the same to
the logits of a whole group. Values whose groups are of channels are never made either: scales go into the weights.
Codes of the other two kinds become floats a piece at a time, and so do units that lie apart.
"""

from numba import njit

from winnow.kernels.attend.cpu_decode import PIECE, add_weighted, areas, hand_out, padded, take_dots
from winnow.kernels.attend.softmax import HIDDEN, ONE, ZERO, cap, fill, update_softmax
from winnow.kernels.packed.lanes import load_bf16, load_f16
from winnow.kernels.quantize import tables as q
from winnow.kernels.quantize.cpu import write_lanes
from winnow.kernels.quantize.lanes import dot_codes, load_codes, load_halves, read_half, weigh_codes
from winnow.kernels.simd import (
    HAS_BF16_DOT,
    add,
    fma,
    load_f32,
    mul,
    read_f32,
    read_i64,
    splat,
    store_f32,
    sum_lanes,
    write_f32,
)

dots_2_1x16, dots_2_2x8, dots_2_4x4 = dot_codes(1, 16, 2), dot_codes(2, 8, 2), dot_codes(4, 4, 2)
dots_2_1x1, dots_2_2x1, dots_2_4x1 = dot_codes(1, 1, 2), dot_codes(2, 1, 2), dot_codes(4, 1, 2)
dots_4_1x16, dots_4_2x8, dots_4_4x4 = dot_codes(1, 16, 4), dot_codes(2, 8, 4), dot_codes(4, 4, 4)
dots_4_1x1, dots_4_2x1, dots_4_4x1 = dot_codes(1, 1, 4), dot_codes(2, 1, 4), dot_codes(4, 1, 4)
dots_8_1x16, dots_8_2x8, dots_8_4x4 = dot_codes(1, 16, 8), dot_codes(2, 8, 8), dot_codes(4, 4, 8)
dots_8_1x1, dots_8_2x1, dots_8_4x1 = dot_codes(1, 1, 8), dot_codes(2, 1, 8), dot_codes(4, 1, 8)
weigh_2_1, weigh_2_2, weigh_2_4 = weigh_codes(1, 2), weigh_codes(2, 2), weigh_codes(4, 2)
weigh_4_1, weigh_4_2, weigh_4_4 = weigh_codes(1, 4), weigh_codes(2, 4), weigh_codes(4, 4)
weigh_8_1, weigh_8_2, weigh_8_4 = weigh_codes(1, 8), weigh_codes(2, 8), weigh_codes(4, 8)


def codes_floats(group: int, head_dim: int) -> int:
    """The memory that `attend_codes` takes beside that of its piece, in float32."""
    vectors = -(-group // 4) * 4
    # Queries, the same scaled, one sum for each, weights of every group of channels with their sums, a tile's output.
    return 2 * PIECE * head_dim + vectors * (2 * head_dim + 16 + head_dim // 16 * (PIECE + 1) + 4 * 16)


@njit(cache=True, error_model="numpy")
def dots_with(
    bits: int, vectors: int, wide: int, query: int, q_stride: int, codes: int, size: int, blocks: int, out: int
) -> None:
    """`vectors` (1, 2, or 4 at a time) x `wide` (16 products in all, or one unit's) products of queries with codes."""
    planes, row = 4 * size, 4 * PIECE
    if bits == 4 and wide > 1:
        if vectors == 1:
            dots_4_1x16(query, q_stride, planes, codes, size, blocks, out, row)
        elif vectors == 2:
            dots_4_2x8(query, q_stride, planes, codes, size, blocks, out, row)
        else:
            dots_4_4x4(query, q_stride, planes, codes, size, blocks, out, row)
    elif bits == 4:
        if vectors == 1:
            dots_4_1x1(query, q_stride, planes, codes, size, blocks, out, row)
        elif vectors == 2:
            dots_4_2x1(query, q_stride, planes, codes, size, blocks, out, row)
        else:
            dots_4_4x1(query, q_stride, planes, codes, size, blocks, out, row)
    elif bits == 8 and wide > 1:
        if vectors == 1:
            dots_8_1x16(query, q_stride, planes, codes, size, blocks, out, row)
        elif vectors == 2:
            dots_8_2x8(query, q_stride, planes, codes, size, blocks, out, row)
        else:
            dots_8_4x4(query, q_stride, planes, codes, size, blocks, out, row)
    elif bits == 8:
        if vectors == 1:
            dots_8_1x1(query, q_stride, planes, codes, size, blocks, out, row)
        elif vectors == 2:
            dots_8_2x1(query, q_stride, planes, codes, size, blocks, out, row)
        else:
            dots_8_4x1(query, q_stride, planes, codes, size, blocks, out, row)
    elif wide > 1:
        if vectors == 1:
            dots_2_1x16(query, q_stride, planes, codes, size, blocks, out, row)
        elif vectors == 2:
            dots_2_2x8(query, q_stride, planes, codes, size, blocks, out, row)
        else:
            dots_2_4x4(query, q_stride, planes, codes, size, blocks, out, row)
    elif vectors == 1:
        dots_2_1x1(query, q_stride, planes, codes, size, blocks, out, row)
    elif vectors == 2:
        dots_2_2x1(query, q_stride, planes, codes, size, blocks, out, row)
    else:
        dots_2_4x1(query, q_stride, planes, codes, size, blocks, out, row)


@njit(cache=True, error_model="numpy")
def weigh_with(
    bits: int, vectors: int, first: int, second: int, third: int, fourth: int, codes: int, size: int, count: int,
    out: int,
) -> None:  # fmt: skip
    """Sixteen columns of codes, weighed for up to four vectors; see `weigh_codes`."""
    row = 4 * PIECE
    if bits == 4:
        if vectors == 1:
            weigh_4_1(first, second, third, fourth, row, codes, size, count, out)
        elif vectors == 2:
            weigh_4_2(first, second, third, fourth, row, codes, size, count, out)
        else:
            weigh_4_4(first, second, third, fourth, row, codes, size, count, out)
    elif bits == 8:
        if vectors == 1:
            weigh_8_1(first, second, third, fourth, row, codes, size, count, out)
        elif vectors == 2:
            weigh_8_2(first, second, third, fourth, row, codes, size, count, out)
        else:
            weigh_8_4(first, second, third, fourth, row, codes, size, count, out)
    elif vectors == 1:
        weigh_2_1(first, second, third, fourth, row, codes, size, count, out)
    elif vectors == 2:
        weigh_2_2(first, second, third, fourth, row, codes, size, count, out)
    else:
        weigh_2_4(first, second, third, fourth, row, codes, size, count, out)


@njit(cache=True, error_model="numpy")
def unpack_units(
    form: int, side: int, head: int, first: int, index: int, count: int, head_dim: int, out: int, half: bool
) -> None:  # fmt: skip
    """Keys (side 0) or values (1) as floats, [count, head_dim]: of the slots from `first` on, or `first` and the int64
    at `index`."""
    bits, group, size = read_i64(form + 8 * q.BITS), read_i64(form + 8 * q.GROUP), read_i64(form + 8 * q.ROW_BYTES)
    mine = form + 8 * (q.SIDE * side)
    codes = read_i64(mine + 8 * q.CODES) + head * read_i64(mine + 8 * q.CODES_STRIDE)
    scales = read_i64(mine + 8 * q.SCALES) + head * read_i64(mine + 8 * q.SCALES_STRIDE)
    row, minima = read_i64(mine + 8 * q.ROW), read_i64(mine + 8 * q.MINIMA)
    by_channel, wide = read_i64(mine + 8 * q.BY_CHANNEL) != 0, 2 if half else 4
    for j in range(count):
        slot = first + (j if index == 0 else read_i64(index + 8 * j))
        for c in range(0, head_dim, 16):
            lanes = load_codes(codes + slot * size + c % size, c // size * bits, 2**bits - 1)
            if by_channel:
                place = scales + slot // group * row + 2 * c
                value = fma(lanes, load_halves(place), load_halves(place + minima))
            else:
                place = scales + c // group * row + 2 * slot
                value = fma(lanes, splat(read_half(place)), splat(read_half(place + minima)))
            write_lanes(out + wide * (j * head_dim + c), value, half)


@njit(cache=True, error_model="numpy")
def dots_by_channel(
    form: int, head: int, first: int, count: int, head_dim: int, vectors: int, query: int, room: int, logits: int
) -> None:
    """logits[i, j] = query[i] . key[j] of the slots from `first` on, float32; of `padded(vectors)` queries."""
    bits, group, size = read_i64(form + 8 * q.BITS), read_i64(form + 8 * q.GROUP), read_i64(form + 8 * q.ROW_BYTES)
    codes = read_i64(form + 8 * q.CODES) + head * read_i64(form + 8 * q.CODES_STRIDE)
    scales = read_i64(form + 8 * q.SCALES) + head * read_i64(form + 8 * q.SCALES_STRIDE)
    row, minima = read_i64(form + 8 * q.ROW), read_i64(form + 8 * q.MINIMA)
    wide = 16 if vectors == 1 else 8 if vectors == 2 else 4
    done = 0
    while done < count:
        slot = first + done
        many = min(count - done, group - slot % group)
        place = scales + slot // group * row
        for i in range(vectors):
            total, mine = splat(ZERO), 4 * i * head_dim
            for c in range(0, head_dim, 16):
                value = load_f32(query + mine + 4 * c)
                total = fma(value, load_halves(place + minima + 2 * c), total)
                store_f32(room + mine + 4 * c, mul(value, load_halves(place + 2 * c)))
            write_f32(room + 4 * (padded(vectors) * head_dim + i), sum_lanes(total))
        whole = many // wide * wide
        for i in range(0, vectors, 4):
            mine, place = room + 4 * i * head_dim, logits + 4 * (i * PIECE + done)
            for j in range(0, whole, wide):
                dots_with(
                    bits, vectors, wide, mine, 4 * head_dim, codes + (slot + j) * size, size, size // 16, place + 4 * j
                )
            for j in range(whole, many):
                dots_with(
                    bits, vectors, 1, mine, 4 * head_dim, codes + (slot + j) * size, size, size // 16, place + 4 * j
                )
        for i in range(vectors):
            added = read_f32(room + 4 * (padded(vectors) * head_dim + i))
            mine = logits + 4 * (i * PIECE + done)
            lanes = many // 16 * 16
            for j in range(0, lanes, 16):
                store_f32(mine + 4 * j, add(load_f32(mine + 4 * j), splat(added)))
            for j in range(lanes, many):
                write_f32(mine + 4 * j, read_f32(mine + 4 * j) + added)
        done += many


@njit(cache=True, error_model="numpy")
def weigh_by_token(
    form: int, head: int, first: int, count: int, head_dim: int, vectors: int, weights: int, room: int, sums: int
) -> None:
    """sums[i] += sum over j of weights[i, j] * value[j] of the slots from `first` on."""
    bits, group, size = read_i64(form + 8 * q.BITS), read_i64(form + 8 * q.GROUP), read_i64(form + 8 * q.ROW_BYTES)
    side = form + 8 * q.SIDE
    codes = read_i64(side + 8 * q.CODES) + head * read_i64(side + 8 * q.CODES_STRIDE) + first * size
    scales = read_i64(side + 8 * q.SCALES) + head * read_i64(side + 8 * q.SCALES_STRIDE) + 2 * first
    row, minima = read_i64(side + 8 * q.ROW), read_i64(side + 8 * q.MINIMA)
    all_of, groups = padded(vectors), head_dim // group
    # Per group of channels: weights [vectors, PIECE] times its scales, and what its minima add.
    adds, out = room + 4 * groups * all_of * PIECE, room + 4 * groups * all_of * (PIECE + 1)
    for g in range(groups):
        for i in range(vectors):
            total = splat(ZERO)
            for j in range(0, count, 16):
                weight, place = load_f32(weights + 4 * (i * PIECE + j)), scales + g * row + 2 * j
                store_f32(room + 4 * ((g * all_of + i) * PIECE + j), mul(weight, load_f16(place, count - j)))
                total = fma(weight, load_f16(place + minima, count - j), total)
            write_f32(adds + 4 * (g * all_of + i), sum_lanes(total))
    planes = 8 // bits
    for b in range(0, size, 16):
        for i in range(0, vectors, 4):
            mine = room + 4 * i * PIECE
            each = 4 * all_of * PIECE
            weigh_with(
                bits, vectors, mine + b // group * each, mine + (size + b) // group * each,
                mine + (2 * size + b) // group * each, mine + (3 * size + b) // group * each, codes + b, size, count,
                out,
            )  # fmt: skip
            for k in range(min(4, vectors - i)):
                for p in range(planes):
                    c = p * size + b
                    place = sums + 4 * ((i + k) * head_dim + c)
                    lift = splat(read_f32(adds + 4 * (c // group * all_of + i + k)))
                    got = add(load_f32(out + 64 * (k * planes + p)), lift)
                    store_f32(place, add(load_f32(place), got))


@njit(cache=True, error_model="numpy")
def attend_codes(
    form: int, head: int, first: int, start: int, stop: int, head_dim: int, group: int, scale: float, softcap: float,
    half: bool, work: int, kept: int, kept_row: int, index: int, room: int,
) -> None:  # fmt: skip
    """`attend_run` of one row over units that are held as codes: those numbered [start, stop), unit 0 being in slot
    `first`; index: as there. form: the address of a slab's facts; room: `codes_floats` of memory."""
    size, vectors = head_dim * (2 if half else 4), group
    queries, logits, sums, tops, totals = areas(work, padded(vectors), head_dim)
    fill(sums, ZERO, tops - sums)
    fill(tops, HIDDEN, totals - tops)
    fill(totals, ZERO, totals - tops)
    fused_keys = index == 0 and read_i64(form + 8 * q.BY_CHANNEL) != 0
    fused_values = index == 0 and read_i64(form + 8 * (q.SIDE + q.BY_CHANNEL)) == 0
    piece, wide = room, room + 4 * 2 * PIECE * head_dim
    after = wide + 4 * padded(vectors) * head_dim
    for i in range(0, vectors * head_dim, 16):
        store_f32(wide + 4 * i, load_bf16(queries + 2 * i) if half else load_f32(queries + 4 * i))
    for at in range(start, stop, PIECE):
        count = min(PIECE, stop - at)
        slot, places = (first + at, 0) if index == 0 else (first, index + 8 * at)
        if fused_keys:
            dots_by_channel(form, head, slot, count, head_dim, vectors, wide, after, logits)
        else:
            unpack_units(form, 0, head, slot, places, count, head_dim, piece, half)
            take_dots(queries, piece, piece, count, size, logits, vectors, half)
        lanes = (count + 15) // 16 * 16
        for i in range(vectors):
            mine = logits + 4 * PIECE * i
            if softcap != 0:
                cap(mine, lanes, scale, softcap)
            for j in range(count, lanes):
                write_f32(mine + 4 * j, HIDDEN)
            factor = ONE if softcap != 0 else scale
            if kept != 0:
                hand_out(mine, factor, kept + i * kept_row + 4 * at, count)
            update_softmax(
                mine, lanes, factor, tops + 4 * i, totals + 4 * i, sums + 4 * head_dim * i, head_dim,
                half and HAS_BF16_DOT and not fused_values,
            )  # fmt: skip
        if fused_values:
            weigh_by_token(form, head, slot, count, head_dim, vectors, logits, after, sums)
        else:
            unpack_units(form, 1, head, slot, places, count, head_dim, piece, half)
            add_weighted(logits, piece, piece, count, head_dim, sums, vectors, half)
