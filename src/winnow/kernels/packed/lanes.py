"""What the packed kernels need of vectors beyond `winnow.kernels.simd`: half-precision scales, and products of tiles.

A lane is a row of a tile, and a vector has what sixteen rows have in the same columns (see `weight.py`). Whole numbers
of up to 16 bits stand for rows of bfloat16, and sums of a group are exact: as two signed bytes each they meet four
codes of every lane in the dot product that newer CPUs have for bytes; elsewhere two of them meet two codes at a time.
For rows of float32 codes become floats.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from winnow.kernels.packed.weight import BLOCK, KINDS, TILE, WORDS
from winnow.kernels.quantize.lanes import BYTE_DOT
from winnow.kernels.simd.build import (
    at,
    call,
    constant,
    narrowed,
    operation,
    read,
    registers,
    shuffled,
    spread,
    write,
)
from winnow.kernels.simd.kinds import (
    F32,
    F32X16,
    HAS_BYTE_DOT,
    HAS_PAIR_DOT,
    I8,
    I16,
    I16X16,
    I32,
    I32X16,
    I64,
    LANES,
    vector,
)

I8X16, F16X16 = ir.VectorType(I8, LANES), ir.VectorType(ir.HalfType(), LANES)
I16X32, I32X8 = ir.VectorType(I16, 2 * LANES), ir.VectorType(I32, LANES // 2)
PAIR_DOT = "llvm.x86.avx2.pmadd.wd"
# A block of a row of x, in bytes. As whole numbers: their upper bytes and their lower ones, or where bytes have no dot
# product the numbers, of each four the third before the second; what they are multiplied by; and per group their sum:
# as int32, times what codes are stored too high by, negative; and as float32. As float32: the columns, and their sum
# per group.
LEVELS, FACTOR, LIFTS, SUMS, INTEGERS = BLOCK, 2 * BLOCK, 2 * BLOCK + 4, 2 * BLOCK + 12, 96
FLOAT_SUMS, FLOATS = 4 * BLOCK, 144
MOST = 127 * 256 + 127  # of what two signed bytes hold
ROOM = max(INTEGERS, FLOATS)  # bytes of a block of x


def halves(builder: Any, address: Any, count: Any) -> Any:
    """The first `count` of sixteen float16 as float32, 0 in the other lanes; nothing behind them is touched."""
    lanes = ir.Constant(I32X16, [ir.Constant(I32, lane) for lane in range(LANES)])
    mask = builder.icmp_signed("<", lanes, spread(builder, builder.trunc(count, I32)))
    place = builder.inttoptr(address, I16X16.as_pointer())
    kind = ir.FunctionType(I16X16, [place.type, I32, mask.type, I16X16])
    load = cgutils.get_or_insert_function(builder.module, kind, "llvm.masked.load.v16i16.p0")
    bits = builder.call(load, [place, I32(2), mask, constant(0, I16X16)])
    return builder.fpext(builder.bitcast(bits, F16X16), F32X16)


load_f16 = operation(vector, types.int64, types.int64)(halves)


@operation(types.float32, types.float32)
def power_below(builder: Any, value: Any) -> Any:
    """The largest power of two that is no more than a positive number; of infinity and NaN: infinity."""
    bits = builder.and_(builder.bitcast(value, I32), I32(0x7F800000))
    return builder.bitcast(bits, F32)


@operation(vector, vector)
def rounded(builder: Any, value: Any) -> Any:
    return call(builder, "llvm.rint.v16f32", F32X16, value)


@operation(types.void, types.int64, vector, vector)
def store_whole(builder: Any, block: Any, first: Any, second: Any) -> None:
    """The 32 whole numbers of a block, at most MOST: each as `upper * 256 + lower`, signed bytes, or as it is."""
    for side, value in enumerate((first, second)):
        whole = builder.fptosi(value, I32X16)
        if not HAS_BYTE_DOT:
            numbers = builder.trunc(whole, I16X16)
            order = [4 * four + column for four in range(LANES // 4) for column in (0, 2, 1, 3)]
            write(builder, builder.add(block, I64(2 * LANES * side)), shuffled(builder, numbers, numbers, order), 2)
            continue
        low = builder.ashr(builder.shl(whole, constant(24, I32X16)), constant(24, I32X16))
        high = builder.ashr(builder.sub(whole, low), constant(8, I32X16))
        for place, each in ((LANES * side, high), (LEVELS + LANES * side, low)):
            write(builder, builder.add(block, I64(place)), builder.trunc(each, I8X16), 1)


@operation(types.void, types.int64, types.float32)
def write_whole(builder: Any, address: Any, value: Any) -> None:
    """A whole number as int32."""
    write(builder, address, builder.fptosi(value, I32), 4)


def _codes(builder: Any, codes: Any, bits: int) -> list[Any]:
    """Of a block, four columns after the other: four codes of every lane, as they are stored."""
    if bits == 8:
        return [read(builder, builder.add(codes, I64(64 * word)), I32X16, 1) for word in range(WORDS)]
    both = [read(builder, builder.add(codes, I64(64 * word)), I32X16, 1) for word in range(WORDS // 2)]
    mask = constant(0x0F0F0F0F, I32X16)
    lower = [builder.and_(each, mask) for each in both]
    return lower + [builder.and_(builder.lshr(each, constant(4, I32X16)), mask) for each in both]


def _factors(builder: Any, address: Any) -> Any:
    """Sixteen float16 as float32."""
    return builder.fpext(read(builder, address, F16X16, 2), F32X16)


def _values(builder: Any, words: list[Any], zero: Any) -> list[Any]:
    """What the codes of a block stand for before they are scaled, column by column, as float32."""
    found = []
    for word in words:
        for column in range(4):
            code = builder.lshr(word, constant(8 * column, I32X16))
            whole = builder.and_(code, constant(255, I32X16)) if column < 3 else code
            found.append(builder.sitofp(builder.sub(whole, spread(builder, zero)), F32X16))
    return found


def _zero(builder: Any, bits: int, minima: Any) -> Any:
    """What codes are stored too high by."""
    return I32(128) if bits == 8 else builder.select(minima, I32(0), I32(8))


def _grown(builder: Any, total: Any, a: Any, b: Any) -> None:
    builder.store(call(builder, "llvm.fma.v16f32", F32X16, a, b, builder.load(total)), total)


def _with_pairs(builder: Any, total: Any, codes: Any, pair: Any) -> Any:
    """Add the products of two whole numbers with two codes of every lane; each is 16 bits of a word."""
    pairs = spread(builder, pair)
    if HAS_PAIR_DOT:
        parts = [builder.bitcast(each, I16X32) for each in (codes, pairs)]
        low, high = (
            call(builder, PAIR_DOT, I32X8, *(shuffled(builder, part, part, lanes) for part in parts))
            for lanes in (range(LANES), range(LANES, 2 * LANES))
        )
        return builder.add(total, shuffled(builder, low, high, range(LANES)))
    bits = constant(16, I32X16)
    for side in range(2):
        code, number = (builder.shl(each, bits) if side == 0 else each for each in (codes, pairs))
        total = builder.add(total, builder.mul(builder.ashr(code, bits), builder.ashr(number, bits)))
    return total


def _scaled(builder: Any, row: Any, totals: list[Any]) -> list[Any]:
    """Sums of whole numbers as what they stand for."""
    factor = spread(builder, read(builder, builder.add(row, I64(FACTOR)), F32, 4))
    return [builder.fmul(builder.sitofp(total, F32X16), factor) for total in totals]


def _byte_sums(builder: Any, x: list[Any], words: list[Any], per: int) -> list[list[Any]]:
    """Products of whole numbers, as two bytes each, with the codes of a block, summed: per row and group."""
    chains = 2 if len(x) == 1 else per
    found = []
    for row in x:
        sums = []
        for chain in range(chains):
            lift = read(builder, builder.add(row, I64(LIFTS + 4 * chain)), I32, 4) if chain < per else I32(0)
            low, high = spread(builder, lift), constant(0, I32X16)
            each = len(words) // chains
            for index in range(chain * each, (chain + 1) * each):
                place = builder.add(row, I64(4 * index))
                four = [spread(builder, read(builder, builder.add(place, I64(side)), I32, 1)) for side in (0, LEVELS)]
                high = call(builder, BYTE_DOT, I32X16, high, words[index], four[0])
                low = call(builder, BYTE_DOT, I32X16, low, words[index], four[1])
            sums.append((high, low))
        if chains > per:
            sums = [tuple(builder.add(a, b) for a, b in zip(*sums, strict=True))]
        totals = [builder.add(builder.shl(high, constant(8, I32X16)), low) for high, low in sums]
        found.append(_scaled(builder, row, totals))
    return found


def _pair_sums(builder: Any, x: list[Any], words: list[Any], per: int) -> list[list[Any]]:
    """The same of pairs of numbers, all rows side by side: registers are few, and two codes are taken apart once."""
    sums = [
        [spread(builder, read(builder, builder.add(row, I64(LIFTS + 4 * p)), I32, 4)) for p in range(per)] for row in x
    ]
    mask = constant(0x00FF00FF, I32X16)
    for index, word in enumerate(words):
        for side, codes in enumerate((word, builder.lshr(word, constant(8, I32X16)))):
            two = builder.and_(codes, mask)
            for row, mine in zip(x, sums, strict=True):
                place = builder.add(row, I64(8 * index + 4 * side))
                group = index * per // len(words)
                mine[group] = _with_pairs(builder, mine[group], two, read(builder, place, I32, 2))
    return [_scaled(builder, row, mine) for row, mine in zip(x, sums, strict=True)]


def _float_sums(builder: Any, x: list[Any], values: list[Any], per: int) -> list[list[Any]]:
    """The same of floats with what the codes stand for."""
    found = []
    for row in x:
        sums, each = [], BLOCK // per
        for group in range(per):
            chains = [constant(0.0, F32X16)] * 4
            for column in range(group * each, (group + 1) * each):
                factor = spread(builder, read(builder, builder.add(row, I64(4 * column)), F32, 4))
                before = chains[column % 4]
                chains[column % 4] = call(builder, "llvm.fma.v16f32", F32X16, factor, values[column], before)
            first, second = (builder.fadd(*pair) for pair in (chains[:2], chains[2:]))
            sums.append(builder.fadd(first, second))
        found.append(sums)
    return found


def product_of_tile(rows: int, kinds: Sequence[int], whole: bool) -> Any:
    """A function that stores the products of a tile, of one of some `kinds`, with `rows` rows of x.

    (x, x_stride, tile, blocks, kind, minima, out): out[r, lane] = x[r] . tile[lane], contiguous float32. x: of whole
    numbers (`whole`), or of floats, block by block; x_stride in bytes. kind: an index of KINDS.
    """

    def emit(builder: Any, index: int, x: Any, x_stride: Any, tile: Any, blocks: Any, minima: Any) -> list[Any]:
        bits, group = KINDS[index]
        per, size = BLOCK // group, INTEGERS if whole else FLOATS
        totals = [registers(builder, constant(0.0, F32X16)) for _ in range(rows)]
        head = builder.select(minima, I64(64 * per), I64(32 * per))
        step = builder.add(head, I64(2 * TILE * bits * BLOCK // 16))
        zero = _zero(builder, bits, minima)
        with cgutils.for_range(builder, blocks) as loop:
            here = at(builder, tile, step, loop.index)
            mine = [at(builder, at(builder, x, I64(size), loop.index), x_stride, I64(r)) for r in range(rows)]
            words = _codes(builder, builder.add(here, head), bits)
            if whole:
                sums = (_byte_sums if HAS_BYTE_DOT else _pair_sums)(builder, mine, words, per)
            else:
                sums = _float_sums(builder, mine, _values(builder, words, zero), per)
            for p in range(per):
                scale = _factors(builder, builder.add(here, I64(32 * p)))
                for total, each in zip(totals, sums, strict=True):
                    _grown(builder, total, each[p], scale)
            with builder.if_then(minima):
                for p in range(per):
                    least = _factors(builder, builder.add(here, I64(32 * (per + p))))
                    for total, row in zip(totals, mine, strict=True):
                        place = builder.add(row, I64((SUMS if whole else FLOAT_SUMS) + 4 * p))
                        _grown(builder, total, least, spread(builder, read(builder, place, F32, 4)))
        return totals

    @operation(types.void, *(types.int64,) * 5, types.boolean, types.int64)
    def product(builder: Any, x: Any, x_stride: Any, tile: Any, blocks: Any, kind: Any, minima: Any, out: Any) -> None:
        minima = builder.trunc(minima, ir.IntType(1))
        for index in kinds:
            with builder.if_then(builder.icmp_signed("==", kind, I64(index))):
                for r, total in enumerate(emit(builder, index, x, x_stride, tile, blocks, minima)):
                    write(builder, builder.add(out, I64(4 * LANES * r)), builder.load(total), 4)

    return product


@operation(types.void, *(types.int64,) * 3, *(types.boolean,) * 2, types.int64)
def expand_tile(builder: Any, tile: Any, block: Any, kind: Any, minima: Any, half: Any, out: Any) -> None:
    """The values of a block of a tile, code * scale + minimum: 16 words of two bfloat16 (`half`), or 32 of a float32,
    each for sixteen rows: [words, rows] at `out`."""
    minima, half = (builder.trunc(each, ir.IntType(1)) for each in (minima, half))
    for index, (bits, group) in enumerate(KINDS):
        with builder.if_then(builder.icmp_signed("==", kind, I64(index))):
            per = BLOCK // group
            head = builder.select(minima, I64(64 * per), I64(32 * per))
            here = at(builder, tile, builder.add(head, I64(2 * TILE * bits * BLOCK // 16)), block)
            words = _codes(builder, builder.add(here, head), bits)
            values = _values(builder, words, _zero(builder, bits, minima))
            scales = [_factors(builder, builder.add(here, I64(32 * p))) for p in range(per)]
            # Where there are no minima these are scales, which are not used.
            least = [_factors(builder, builder.add(here, builder.add(head, I64(-32 * (per - p))))) for p in range(per)]
            least = [builder.select(minima, each, constant(0.0, F32X16)) for each in least]
            made = [
                call(builder, "llvm.fma.v16f32", F32X16, value, scales[column // group], least[column // group])
                for column, value in enumerate(values)
            ]
            with builder.if_else(half) as (then, otherwise):
                with then:
                    for word in range(BLOCK // 2):
                        low, high = (narrowed(builder, made[2 * word + side], I32X16) for side in range(2))
                        both = builder.or_(low, builder.shl(high, constant(16, I32X16)))
                        write(builder, builder.add(out, I64(64 * word)), both, 4)
                with otherwise:
                    for word in range(BLOCK):
                        write(builder, builder.add(out, I64(64 * word)), made[word], 4)
