"""The units that a query matches best by the signs of keys, with Numba, on addresses: sixteen units at once."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from torch import Tensor

from winnow.kernels.attend.softmax import HIDDEN, ZERO
from winnow.kernels.dealt import arguments, kernel
from winnow.kernels.floats import floats
from winnow.kernels.launch import match_torch_threads
from winnow.kernels.layers.rows import load
from winnow.kernels.quantize.lanes import BYTE_DOT
from winnow.kernels.select.cpu_top import bound_for, write_index
from winnow.kernels.select.lanes import sub
from winnow.kernels.signs.reference import BLOCK, LEVELS, Signs, rotation
from winnow.kernels.simd.arithmetic import add, fma, max_lanes, maximum, mul, splat, sum_lanes
from winnow.kernels.simd.build import at, call, constant, operation, read, registers, spread, write
from winnow.kernels.simd.kinds import F32X16, HAS_BYTE_DOT, I8, I32, I32X16, I64, LANES, vector
from winnow.kernels.simd.memory import load_bf16, load_f32, read_bf16, read_f32, store_f32, write_f32, write_i64

CHAINS = 2  # sums of every query, so that one need not wait for the one before it
SET = 255 if HAS_BYTE_DOT else 1  # by which a channel that is set is multiplied
BITS, I8X16, I8X64 = ir.VectorType(ir.IntType(1), 4 * LANES), ir.VectorType(I8, LANES), ir.VectorType(I8, 4 * LANES)


def add_of_set(builder: Any, total: Any, mask: Any, four: Any) -> Any:
    """total + SET times the sums over four signed bytes, the same in every lane, of those that are set there."""
    if HAS_BYTE_DOT:
        return call(builder, BYTE_DOT, I32X16, total, mask, four)
    seen = builder.and_(mask, four)
    for place in range(4):
        upper = builder.shl(seen, constant(24 - 8 * place, I32X16))
        total = builder.add(total, builder.ashr(upper, constant(24, I32X16)))
    return total


def sums_where_set(queries: int) -> Callable[..., None]:
    """A function that adds up, for sixteen units, those channels of some queries whose bits are set.

    (codes, fours, a, a_stride, out): out[i], sixteen float32, SET times the sum over the channels of a[i], signed
    bytes, whose bit of that lane is set; codes: an int64 for every four channels. a_stride: in bytes.
    """

    @operation(types.void, *(types.int64,) * 5)
    def tile(builder: Any, codes: Any, fours: Any, a: Any, a_stride: Any, out: Any) -> None:
        sums = [[registers(builder, constant(0, I32X16)) for _ in range(CHAINS)] for _ in range(queries)]
        with cgutils.for_range_slice(builder, I64(0), fours, I64(CHAINS), I64) as (four, _):
            for chain in range(CHAINS):
                here = builder.add(four, I64(chain))
                bits = builder.bitcast(read(builder, at(builder, codes, I64(8), here), I64, 8), BITS)
                mask = builder.bitcast(builder.sext(bits, I8X64), I32X16)
                place = at(builder, a, I64(4), here)
                for i in range(queries):
                    channels = spread(builder, read(builder, at(builder, place, a_stride, I64(i)), I32, 1))
                    total = sums[i][chain]
                    builder.store(add_of_set(builder, builder.load(total), mask, channels), total)
        for i in range(queries):
            first, second = (builder.load(each) for each in sums[i])
            added = builder.sitofp(builder.add(first, second), F32X16)
            write(builder, builder.add(out, I64(4 * LANES * i)), added, 4)

    return tile


sums_1, sums_2, sums_3, sums_4 = (sums_where_set(queries) for queries in (1, 2, 3, 4))


@operation(types.void, types.int64, vector)
def store_bytes(builder: Any, address: Any, value: Any) -> None:
    """Sixteen whole numbers as signed bytes."""
    write(builder, address, builder.trunc(builder.fptosi(value, I32X16), I8X16), 1)


@operation(vector, vector)
def rounded(builder: Any, value: Any) -> Any:
    return call(builder, "llvm.rint.v16f32", F32X16, value)


def signs_floats(group: int, head_dim: int, units: int) -> int:
    """The memory that choosing for one KV head takes, in float32."""
    return group * (head_dim + BLOCK + 3) + units + head_dim + 2 * BLOCK


@njit(cache=True, error_model="numpy")
def ask(query: int, turn: int, head_dim: int, room: int, out: int, half: bool) -> tuple[float, float]:
    """out = query @ turn as signed bytes; returns what one of these stands for, and the sum of all. room: as many
    float32."""
    most, total, zero = splat(ZERO), splat(ZERO), splat(ZERO)
    for j in range(0, 4 * head_dim, 8 * BLOCK):  # two times sixteen channels, each in two sums that need not wait
        first, second, others, more = zero, zero, zero, zero
        for i in range(0, head_dim, 2):
            even = splat(read_bf16(query + 2 * i) if half else read_f32(query + 4 * i))
            odd = splat(read_bf16(query + 2 * i + 2) if half else read_f32(query + 4 * i + 4))
            row = turn + 4 * i * head_dim + j
            first, second = fma(even, load_f32(row), first), fma(even, load_f32(row + 4 * BLOCK), second)
            row += 4 * head_dim
            others, more = fma(odd, load_f32(row), others), fma(odd, load_f32(row + 4 * BLOCK), more)
        first, second = add(first, others), add(second, more)
        store_f32(room + j, first)
        store_f32(room + j + 4 * BLOCK, second)
        most = maximum(maximum(first, sub(zero, first)), maximum(maximum(second, sub(zero, second)), most))
    step = max_lanes(most) / np.float32(LEVELS)
    back = np.float32(1.0) / step if step > ZERO else ZERO
    for j in range(0, head_dim, BLOCK):
        value = rounded(mul(load_f32(room + 4 * j), splat(back)))
        store_bytes(out + j, value)
        total = add(value, total)
    return step, sum_lanes(total)


@njit(cache=True, error_model="numpy")
def add_where_set(codes: int, head_dim: int, asked: int, group: int, out: int) -> None:
    """`sums_where_set` of all queries of a group."""
    fours = head_dim // 4
    for i in range(0, group, 4):
        left, mine, there = group - i, asked + i * head_dim, out + 4 * BLOCK * i
        if left == 1:
            sums_1(codes, fours, mine, head_dim, there)
        elif left == 2:
            sums_2(codes, fours, mine, head_dim, there)
        elif left == 3:
            sums_3(codes, fours, mine, head_dim, there)
        else:
            sums_4(codes, fours, mine, head_dim, there)


@njit(cache=True, error_model="numpy")
def choose_units(
    query: int, codes: int, lengths: int, centre: int, turn: int, group: int, head_dim: int, skipped: int, units: int,
    count: int, out: int, room: int, half: bool,
) -> None:  # fmt: skip
    """`best_units()` for one KV head. room: `signs_floats` of memory."""
    sums = room + group * head_dim  # behind the queries, as bytes
    facts = sums + 4 * group * BLOCK
    scores = facts + 12 * group
    size = 2 if half else 4
    for i in range(group):
        mine, known = query + i * head_dim * size, splat(ZERO)
        for c in range(0, head_dim, BLOCK):
            known = fma(load(mine + c * size, half), load_f32(centre + 4 * c), known)
        step, total = ask(mine, turn, head_dim, scores, room + i * head_dim, half)
        write_f32(facts + 12 * i, sum_lanes(known))
        write_f32(facts + 12 * i + 4, np.float32(2.0) * step / np.float32(SET))
        write_f32(facts + 12 * i + 8, -step * total)
    for first in range(0, skipped + units, BLOCK):
        add_where_set(codes + 2 * head_dim * (first // BLOCK), head_dim, room, group, sums)
        length, score = load_bf16(lengths + 2 * first), splat(HIDDEN)
        for i in range(group):
            fact = facts + 12 * i
            matched = fma(load_f32(sums + 4 * BLOCK * i), splat(read_f32(fact + 4)), splat(read_f32(fact + 8)))
            score = maximum(fma(length, matched, splat(read_f32(fact))), score)
        store_f32(scores + 4 * first, score)
    asked = scores + 4 * skipped
    found = write_index(asked, units, bound_for(asked, units, count), count, out)
    for i in range(found, count):  # of scores that are NaN none is best
        write_i64(out + 8 * i, 0)


KINDS = "i" * 15 + "b"


@kernel(KINDS)
def signs_kernel(head: int, kv_heads: int, place: int) -> None:
    """`best_units()` of one KV head, on addresses; strides in bytes."""
    (
        query, codes, codes_stride, lengths, lengths_stride, centre, turn, group, head_dim, skipped, units, count, out,
        room, room_bytes, half,
    ) = arguments(place, KINDS)  # fmt: skip
    choose_units(
        query + head * group * head_dim * (2 if half else 4), codes + head * codes_stride,
        lengths + head * lengths_stride, centre + 4 * head * head_dim, turn, group, head_dim, skipped, units, count,
        out + 8 * head * count, room + head * room_bytes, half,
    )  # fmt: skip


def best_units_cpu(query: Tensor, signs: Signs, count: int) -> Tensor:
    """The arguments and result of `best_units()`; head_dim a multiple of 32, bfloat16 or float32."""
    kv_heads, head_dim = signs.centre.shape
    query, group = query.contiguous(), len(query) // kv_heads
    out = torch.empty(kv_heads, count, dtype=torch.int64, device="cpu")
    room = floats(kv_heads, signs_floats(group, head_dim, signs.units))
    match_torch_threads()
    signs_kernel(
        kv_heads, query.data_ptr(), signs.codes.data_ptr(), signs.codes.stride(0) * 8, signs.lengths.data_ptr(),
        signs.lengths.stride(0) * 2, signs.centre.data_ptr(), rotation(head_dim, query.device).data_ptr(), group,
        head_dim, signs.skipped, signs.units, count, out.data_ptr(), room.data_ptr(), room.stride(0) * room.itemsize,
        query.dtype == torch.bfloat16,
    )  # fmt: skip
    return out
