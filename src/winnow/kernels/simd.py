"""Sixteen-lane float32 vectors for Numba kernels, and the few operations the kernels here need of them.

LLVM's auto-vectoriser does not find the bfloat16 dot product of newer CPUs and spills the tiles of a matrix product, so
the kernels say what they want: `vector` is a Numba type that *is* an LLVM `<16 x float>`. On a CPU with narrower
registers LLVM splits it; nothing here depends on AVX-512 except what `HAS_BF16_DOT` guards.

Memory is named by integer addresses (`tensor.data_ptr()`): a call that passes integers costs 2 us, one that passes five
arrays 10, and a decode step makes two hundred of them. Addresses are unchecked; `attend()` and `linear()` check shapes,
strides and dtypes before anything comes here.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils, config, types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

from winnow.kernels.launch import match_torch_threads

# Loading a compiled parallel kernel starts Numba's threads, and that must not change torch's thread count.
match_torch_threads()

LANES = 16

# NUMBA_CPU_NAME makes Numba compile for another CPU than this one: then its features are not ours to use.
_FOR_THIS_CPU = config.CPU_NAME is None  # type: ignore[attr-defined]
HAS_BYTE_DOT: bool = _FOR_THIS_CPU and bool(llvm.get_host_cpu_features().get("avx512vnni", False))
HAS_BF16_DOT: bool = _FOR_THIS_CPU and bool(llvm.get_host_cpu_features().get("avx512bf16", False))


class Vector(types.Type):
    """Sixteen float32 lanes in a register."""

    def __init__(self) -> None:
        super().__init__(name="winnow.f32x16")


class BFloat(ir.Type):
    """LLVM's `bfloat`, which llvmlite does not name."""

    intrinsic_name = "bf16"

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash("bfloat")


vector = Vector()
I8, I16, I32, I64, F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
F32X16, I32X16, I16X16 = (ir.VectorType(scalar, LANES) for scalar in (F32, I32, I16))
BF16X16, BF16X32 = ir.VectorType(BFloat(), LANES), ir.VectorType(BFloat(), 2 * LANES)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, F32X16)


def operation(result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: `emit(builder, *values) -> value` becomes a function Numba code can call, with these Numba types."""

    def decorate(emit: Callable[..., Any]) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            value = emit(builder, *values)
            return context.get_dummy_value() if value is None else value

        def typing(typingctx: Any, *_: Any) -> Any:
            return result(*arguments), codegen

        names = ["typingctx", *list(inspect.signature(emit).parameters)[1:]]
        typing.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        )
        typing.__name__, typing.__doc__ = emit.__name__, emit.__doc__
        return intrinsic(typing)

    return decorate


# ---- what an operation is made of -----------------------------------------------------------------------------------


def call(builder: Any, name: str, result: Any, *values: Any, fastmath: tuple[str, ...] = ()) -> Any:
    """Call the LLVM intrinsic `name`; the types are those of `values`."""
    kind = ir.FunctionType(result, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values, fastmath=fastmath)


def read(builder: Any, address: Any, kind: Any, align: int) -> Any:
    loaded = builder.load(builder.inttoptr(address, kind.as_pointer()))
    loaded.align = align
    return loaded


def write(builder: Any, address: Any, value: Any, align: int) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = align


def prefetch(builder: Any, address: Any, lines: int) -> None:
    """Ask for `lines` cache lines from `address` on, into the second-level cache; any address will do, none faults."""
    for line in range(lines):
        place = builder.inttoptr(builder.add(address, I64(64 * line)), I8.as_pointer())
        call(builder, "llvm.prefetch.p0", ir.VoidType(), place, I32(0), I32(2), I32(1))


def at(builder: Any, base: Any, stride: Any, index: Any) -> Any:
    """base + stride * index"""
    return builder.add(base, builder.mul(stride, index))


def constant(value: float, kind: Any = F32) -> Any:
    """The scalar `value`, or a vector full of it."""
    if isinstance(kind, ir.VectorType):
        return ir.Constant(kind, [ir.Constant(kind.element, value)] * kind.count)
    return ir.Constant(kind, value)


def spread(builder: Any, scalar: Any, lanes: int = LANES) -> Any:
    """A vector with `scalar` in every lane."""
    empty = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    one = builder.insert_element(empty, scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, empty, constant(0, ir.VectorType(I32, lanes)))


# ---- memory ---------------------------------------------------------------------------------------------------------


@operation(vector, types.int64)
def load_f32(builder: Any, address: Any) -> Any:
    return read(builder, address, F32X16, 4)


def widened(builder: Any, address: Any) -> Any:
    """Sixteen bfloat16 as float32: a bfloat16 is the upper half of the float32."""
    wide = builder.zext(read(builder, address, I16X16, 2), I32X16)
    return builder.bitcast(builder.shl(wide, constant(16, I32X16)), F32X16)


@operation(types.float32, types.int64)
def read_bf16(builder: Any, address: Any) -> Any:
    bits = builder.zext(read(builder, address, I16, 2), I32)
    return builder.bitcast(builder.shl(bits, ir.Constant(I32, 16)), F32)


@operation(types.void, types.int64, vector)
def store_f32(builder: Any, address: Any, value: Any) -> None:
    write(builder, address, value, 4)


@operation(types.float32, types.int64)
def read_f32(builder: Any, address: Any) -> Any:
    return read(builder, address, F32, 4)


@operation(types.int64, types.int64)
def read_i64(builder: Any, address: Any) -> Any:
    return read(builder, address, I64, 8)


@operation(types.void, types.int64, types.int64)
def write_i64(builder: Any, address: Any, value: Any) -> None:
    write(builder, address, value, 8)


@operation(types.void, types.int64, types.float32)
def write_f32(builder: Any, address: Any, value: Any) -> None:
    write(builder, address, value, 4)


def narrowed(builder: Any, value: Any, kind: Any) -> Any:
    """float32 as bfloat16 bits in the low half of an integer of `kind`, rounded to nearest even; NaN stays NaN."""
    bits = builder.bitcast(value, kind)
    odd = builder.and_(builder.lshr(bits, constant(16, kind)), constant(1, kind))
    rounded = builder.lshr(builder.add(bits, builder.add(odd, constant(0x7FFF, kind))), constant(16, kind))
    return builder.select(builder.fcmp_unordered("uno", value, value), constant(0x7FC0, kind), rounded)


@operation(types.void, types.int64, types.float32)
def write_bf16(builder: Any, address: Any, value: Any) -> None:
    write(builder, address, builder.trunc(narrowed(builder, value, I32), I16), 2)


@operation(types.void, types.int64, vector)
def store_bf16(builder: Any, address: Any, value: Any) -> None:
    if HAS_BF16_DOT:
        write(builder, address, builder.fptrunc(value, BF16X16), 2)
        return
    write(builder, address, builder.trunc(narrowed(builder, value, I32X16), I16X16), 2)


@operation(vector, vector, types.int64, types.int64, types.int64)
def hidden_unless_seen(builder: Any, logits: Any, k_positions: Any, q_position: Any, window: Any) -> Any:
    """-inf in the lanes whose unit, of the 16 positions at `k_positions`, the row does not see; window 0: none."""
    kind = ir.VectorType(I64, LANES)
    distance = builder.sub(spread(builder, q_position), read(builder, k_positions, kind, 8))
    reach = builder.select(builder.icmp_signed("==", window, I64(0)), I64(2**63 - 1), window)
    causal = builder.icmp_signed(">=", distance, constant(0, kind))
    seen = builder.and_(causal, builder.icmp_signed("<", distance, spread(builder, reach)))
    return builder.select(seen, logits, constant(float("-inf"), F32X16))


# ---- arithmetic -----------------------------------------------------------------------------------------------------


@operation(vector, types.float32)
def splat(builder: Any, value: Any) -> Any:
    return spread(builder, value)


@operation(vector, vector, vector)
def add(builder: Any, a: Any, b: Any) -> Any:
    return builder.fadd(a, b)


@operation(vector, vector, vector)
def mul(builder: Any, a: Any, b: Any) -> Any:
    return builder.fmul(a, b)


@operation(vector, vector, vector)
def divide(builder: Any, a: Any, b: Any) -> Any:
    return builder.fdiv(a, b)


@operation(vector, vector, vector)
def maximum(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@operation(vector, vector, vector, vector)
def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c"""
    return call(builder, "llvm.fma.v16f32", F32X16, a, b, c)


def emit_sum(builder: Any, a: Any) -> Any:
    return call(builder, "llvm.vector.reduce.fadd.v16f32", F32, constant(0.0), a, fastmath=("reassoc",))


sum_lanes = operation(types.float32, vector)(emit_sum)


@operation(types.float32, vector)
def max_lanes(builder: Any, a: Any) -> Any:
    return call(builder, "llvm.vector.reduce.fmax.v16f32", F32, a, fastmath=("nnan",))


@operation(vector, vector)
def exp(builder: Any, x: Any) -> Any:
    """e**x to 1 ulp for x <= 88; 0 below -87, so that a masked logit of -inf weighs nothing.

    The usual split x = n ln 2 + r, |r| <= ln(2) / 2, with the degree-6 polynomial of Cephes' expf for e**r.
    """
    fused = lambda a, b, c: call(builder, "llvm.fma.v16f32", F32X16, a, b, c)  # noqa: E731
    fill = lambda value: constant(value, F32X16)  # noqa: E731
    tiny = builder.fcmp_ordered("<", x, fill(-87.0))
    x = builder.select(tiny, fill(-87.0), x)
    n = call(builder, "llvm.rint.v16f32", F32X16, builder.fmul(x, fill(1.44269504088896341)))
    r = fused(n, fill(-0.693359375), x)
    r = fused(n, fill(2.12194440e-4), r)
    power = fill(1.9875691500e-4)
    for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        power = fused(power, r, fill(coefficient))
    power = fused(power, builder.fmul(r, r), builder.fadd(r, fill(1.0)))
    exponent = builder.shl(builder.fptosi(n, I32X16), constant(23, I32X16))
    scaled = builder.bitcast(builder.add(builder.bitcast(power, I32X16), exponent), F32X16)
    return builder.select(tiny, fill(0.0), scaled)


@operation(vector, vector)
def tanh(builder: Any, x: Any) -> Any:
    """Hyperbolic tangent to a few ulp: Eigen's rational function, odd over even, of x clamped to where it is not 1."""
    fused = lambda a, b, c: call(builder, "llvm.fma.v16f32", F32X16, a, b, c)  # noqa: E731
    fill = lambda value: constant(value, F32X16)  # noqa: E731
    small = builder.fcmp_ordered("<", call(builder, "llvm.fabs.v16f32", F32X16, x), fill(0.0004))
    clamped = call(builder, "llvm.minnum.v16f32", F32X16, x, fill(7.9053111))
    clamped = call(builder, "llvm.maxnum.v16f32", F32X16, clamped, fill(-7.9053111))
    square = builder.fmul(clamped, clamped)
    over = fill(-2.76076847742355e-16)
    for coefficient in (
        2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
        1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03,
    ):  # fmt: skip
        over = fused(over, square, fill(coefficient))
    under = fill(1.19825839466702e-06)
    for coefficient in (1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03):
        under = fused(under, square, fill(coefficient))
    return builder.select(small, x, builder.fdiv(builder.fmul(clamped, over), under))


def emit_dot_bf16(builder: Any, sums: Any, a: Any, b: Any) -> Any:
    """Add the products of the 32 bfloat16 at address `a` with the 32 at `b` to the lanes, two to each."""
    if HAS_BF16_DOT:
        pairs = (read(builder, a, BF16X32, 2), read(builder, b, BF16X32, 2))
        return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", F32X16, sums, *pairs)
    for offset in (0, 32):
        halves = (widened(builder, builder.add(address, ir.Constant(I64, offset))) for address in (a, b))
        sums = call(builder, "llvm.fma.v16f32", F32X16, *halves, sums)
    return sums


def emit_dot_f32(builder: Any, sums: Any, a: Any, b: Any) -> Any:
    """Add the products of the 16 float32 at address `a` with the 16 at `b` to the lanes."""
    return call(builder, "llvm.fma.v16f32", F32X16, read(builder, a, F32X16, 4), read(builder, b, F32X16, 4), sums)


dot_bf16 = operation(vector, vector, types.int64, types.int64)(emit_dot_bf16)
dot_f32 = operation(vector, vector, types.int64, types.int64)(emit_dot_f32)


def shuffled(builder: Any, a: Any, b: Any, lanes: Sequence[int]) -> Any:
    """The lanes of `a` (from 0) and `b` (from a's length on) in the order given; one instruction where there is one."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(lanes)), [I32(lane) for lane in lanes]))


# Four ways of halving: which lanes of two vectors are added to which. Each is one shuffle instruction per side; the
# last two stay inside 128 bits.
HALVINGS = tuple(
    ([lane + side for side in (0, LANES) for lane in kept], [lane + side for side in (0, LANES) for lane in added])
    for kept, added in (
        (range(8), range(8, 16)),
        ((0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)),
    )
) + tuple(
    (
        [4 * block + lane + side for block in range(4) for side in (0, LANES) for lane in kept],
        [4 * block + lane + side for block in range(4) for side in (0, LANES) for lane in added],
    )
    for kept, added in (((0, 1), (2, 3)), ((0, 2), (1, 3)))
)


def sums_of_sixteen(builder: Any, vectors: list[Any]) -> Any:
    """Lane i of the result is the sum of the lanes of vectors[i]."""

    def tree(leaves: list[Any], combine: Callable[[Any, Any, Any, Any], Any]) -> Any:
        for kept, added in HALVINGS:
            leaves = [combine(a, b, kept, added) for a, b in zip(leaves[::2], leaves[1::2], strict=True)]
        return leaves[0]

    # Where each vector's sum ends up, by letting the lanes carry names; then feed them so that it is in order.
    ends = tree([[i] * LANES for i in range(LANES)], lambda a, b, kept, added: [(a + b)[lane] for lane in kept])
    ordered = [vectors[ends.index(i)] for i in range(LANES)]
    return tree(ordered, lambda a, b, *halves: builder.fadd(*(shuffled(builder, a, b, lanes) for lanes in halves)))


# ---- tiles: several dot products, or several weighted sums, at once -------------------------------------------------


def dot_tile(queries: int, units: int) -> Any:
    """A function that stores queries x units dot products; the sums stay in registers until the end.

    (a, a_stride, b, b_stride, size, out, out_stride, ahead, half): out[i, j] = a[i] . b[j] over `size` bytes, of
    bfloat16 (`half`) or float32; strides in bytes, each out[i] contiguous float32. Sixteen products are added up
    together, in a third of the instructions that sixteen separate sums over lanes take. On the way, units * `size`
    bytes at `ahead` are fetched: evenly, because a burst of prefetches stalls the products behind it.
    """

    def emit(builder: Any, a: Any, b: Any, size: Any, out: Any, out_stride: Any, ahead: Any, product: Any) -> None:
        sums = [registers(builder, constant(0.0, F32X16)) for _ in range(queries * units)]
        with cgutils.for_range_slice(builder, I64(0), size, I64(64), I64) as (offset, _):
            prefetch(builder, at(builder, ahead, offset, I64(units)), units)
            for i in range(queries):
                for j in range(units):
                    total = sums[i * units + j]
                    places = (builder.add(a[i], offset), builder.add(b[j], offset))
                    builder.store(product(builder, builder.load(total), *places), total)
        loaded = [builder.load(total) for total in sums]
        if len(loaded) == LANES:
            totals = sums_of_sixteen(builder, loaded)
            for i in range(queries):
                mine = shuffled(builder, totals, totals, range(i * units, (i + 1) * units))
                write(builder, at(builder, out, out_stride, I64(i)), mine, 4)
            return
        for i in range(queries):
            for j in range(units):
                place = builder.add(at(builder, out, out_stride, I64(i)), I64(4 * j))
                write(builder, place, emit_sum(builder, loaded[i * units + j]), 4)

    @operation(types.void, *(types.int64,) * 8, types.boolean)
    def tile(
        builder: Any,
        a: Any,
        a_stride: Any,
        b: Any,
        b_stride: Any,
        size: Any,
        out: Any,
        out_stride: Any,
        ahead: Any,
        half: Any,
    ) -> None:
        a = [at(builder, a, a_stride, I64(i)) for i in range(queries)]
        b = [at(builder, b, b_stride, I64(j)) for j in range(units)]
        with builder.if_else(builder.trunc(half, ir.IntType(1))) as (then, otherwise):
            with then:
                emit(builder, a, b, size, out, out_stride, ahead, emit_dot_bf16)
            with otherwise:
                emit(builder, a, b, size, out, out_stride, ahead, emit_dot_f32)

    return tile


def weigh_tile(queries: int, half: bool) -> Any:
    """A function that adds weighted rows to `queries` running sums of 32 columns, held in registers.

    (weights, weights_stride, rows, rows_stride, count, sums, sums_stride, ahead):
    sums[i] += sum over j < count of weights[i, j] * rows[j]; strides in bytes, sums float32, rows bfloat16 (`half`) or
    float32, weights float32, or bfloat16 where `half` and HAS_BF16_DOT; those are followed by a 0 if `count` is odd. On
    the way, as many bytes at `ahead` are fetched as the columns of `rows` have.
    """
    emit = _emit_weigh_pairs if half and HAS_BF16_DOT else _emit_weigh_rows(widened if half else None)

    @operation(types.void, *(types.int64,) * 8)
    def tile(
        builder: Any,
        weights: Any,
        weights_stride: Any,
        rows: Any,
        rows_stride: Any,
        count: Any,
        sums: Any,
        sums_stride: Any,
        ahead: Any,
    ) -> None:
        weights = [at(builder, weights, weights_stride, I64(i)) for i in range(queries)]
        starts = [at(builder, sums, sums_stride, I64(i)) for i in range(queries)]
        emit(builder, weights, rows, rows_stride, count, starts, ahead)

    return tile


def _emit_weigh_rows(widen: Any) -> Callable[..., None]:
    """One row at a time; `widen` loads its 16 lanes as float32, or None where they are."""
    load, step = (widen, 32) if widen else (lambda builder, place: read(builder, place, F32X16, 4), 64)

    def emit(builder: Any, weights: Any, rows: Any, rows_stride: Any, count: Any, sums: Any, ahead: Any) -> None:
        places = [builder.add(start, I64(64 * c)) for start in sums for c in range(2)]
        kept = [registers(builder, read(builder, place, F32X16, 4)) for place in places]
        with cgutils.for_range(builder, count) as loop:
            row = at(builder, rows, rows_stride, loop.index)
            prefetch(builder, at(builder, ahead, I64(2 * step), loop.index), step // 32)
            lanes = [load(builder, builder.add(row, I64(step * c))) for c in range(2)]
            for i, weight in enumerate(weights):
                factor = spread(builder, read(builder, at(builder, weight, I64(4), loop.index), F32, 4))
                for c in range(2):
                    total = kept[2 * i + c]
                    grown = call(builder, "llvm.fma.v16f32", F32X16, factor, lanes[c], builder.load(total))
                    builder.store(grown, total)
        for total, place in zip(kept, places, strict=True):
            write(builder, place, builder.load(total), 4)

    return emit


# Interleaving two rows inside blocks of 128 bits is one instruction; the sums are then kept in its order: columns 0-3,
# 8-11, 16-19, 24-27 and the others.
EVEN_BLOCKS = [8 * block + lane for block in range(4) for lane in range(4)]
ODD_BLOCKS = [column + 4 for column in EVEN_BLOCKS]
IN_ORDER = [(EVEN_BLOCKS + ODD_BLOCKS).index(column) for column in range(2 * LANES)]


def _emit_weigh_pairs(
    builder: Any, weights: Any, rows: Any, rows_stride: Any, count: Any, sums: Any, ahead: Any
) -> None:
    """Two rows at a time, with the bfloat16 dot product."""
    kept = []
    for start in sums:
        columns = [read(builder, builder.add(start, I64(64 * c)), F32X16, 4) for c in range(2)]
        kept += [
            registers(builder, shuffled(builder, columns[0], columns[1], order)) for order in (EVEN_BLOCKS, ODD_BLOCKS)
        ]
    last = builder.sub(count, I64(1))
    with cgutils.for_range_slice(builder, I64(0), count, I64(2), I64) as (index, _):
        prefetch(builder, at(builder, ahead, I64(64), index), 2)
        following = builder.add(index, I64(1))
        # Past the end there may be NaN, and 0 * NaN is NaN: an odd last row is paired with itself, at weight 0.
        following = builder.select(builder.icmp_signed("<", following, count), following, last)
        pair = [read(builder, at(builder, rows, rows_stride, j), BF16X32, 2) for j in (index, following)]
        mixed = [
            shuffled(builder, pair[0], pair[1], [column + row for column in order for row in (0, 2 * LANES)])
            for order in (EVEN_BLOCKS, ODD_BLOCKS)
        ]
        for i, weight in enumerate(weights):
            two = spread(builder, read(builder, at(builder, weight, I64(2), index), I32, 2))
            two = builder.bitcast(two, BF16X32)
            for c in range(2):
                total = kept[2 * i + c]
                name = "llvm.x86.avx512bf16.dpbf16ps.512"
                builder.store(call(builder, name, F32X16, builder.load(total), two, mixed[c]), total)
    for i, start in enumerate(sums):
        both = [builder.load(total) for total in kept[2 * i : 2 * i + 2]]
        for c in range(2):
            columns = shuffled(builder, both[0], both[1], IN_ORDER[LANES * c : LANES * (c + 1)])
            write(builder, builder.add(start, I64(64 * c)), columns, 4)


def registers(builder: Any, value: Any) -> Any:
    """A variable that LLVM keeps in a register, set to `value`."""
    variable = cgutils.alloca_once(builder, value.type)
    builder.store(value, variable)
    return variable


# ---- matrix products ------------------------------------------------------------------------------------------------
# A word is 32 bits: one float32, or two bfloat16 that belong to neighbouring steps of the inner dimension.

TILE_ROWS = 12
PANEL = 2 * LANES  # columns of a packed panel: [words, PANEL]


def product_tile(a_stride: int, half: bool) -> Any:
    """A function that multiplies TILE_ROWS rows by a panel, all 384 sums in registers.

    (a, panel, words, c, c_stride, accumulate): c[i] (+)= sum over w < words of a[i, w] * panel[w]; `a_stride` and
    `c_stride` in bytes, a of words, c of PANEL float32.
    """

    def multiply(builder: Any, total: Any, word: Any, lanes: Any) -> Any:
        if half:
            pairs = (builder.bitcast(spread(builder, word), BF16X32), builder.bitcast(lanes, BF16X32))
            return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", F32X16, total, *pairs)
        return call(builder, "llvm.fma.v16f32", F32X16, spread(builder, builder.bitcast(word, F32)), lanes, total)

    @operation(types.void, *(types.int64,) * 5, types.boolean)
    def tile(builder: Any, a: Any, panel: Any, words: Any, c: Any, c_stride: Any, accumulate: Any) -> None:
        places = [
            builder.add(at(builder, c, c_stride, I64(i)), I64(64 * side)) for i in range(TILE_ROWS) for side in range(2)
        ]
        kept = [registers(builder, constant(0.0, F32X16)) for _ in places]
        with builder.if_then(builder.trunc(accumulate, ir.IntType(1))):
            for total, place in zip(kept, places, strict=True):
                builder.store(read(builder, place, F32X16, 4), total)
        with cgutils.for_range(builder, words) as loop:
            row = at(builder, panel, I64(4 * PANEL), loop.index)
            sides = [read(builder, builder.add(row, I64(64 * side)), F32X16, 4) for side in range(2)]
            column = at(builder, a, I64(4), loop.index)
            for i in range(TILE_ROWS):
                word = read(builder, builder.add(column, I64(a_stride * i)), I32, 4)
                for side in range(2):
                    total = kept[2 * i + side]
                    builder.store(multiply(builder, builder.load(total), word, sides[side]), total)
        for total, place in zip(kept, places, strict=True):
            write(builder, place, builder.load(total), 4)

    return tile


@operation(types.void, types.int64, types.int64, types.int64, types.int64)
def transpose_words(builder: Any, source: Any, source_stride: Any, target: Any, target_stride: Any) -> None:
    """16 x 16 words: target[i, j] = source[j, i]; strides in bytes."""
    lines = [read(builder, at(builder, source, source_stride, I64(i)), F32X16, 4) for i in range(LANES)]
    for distance in (8, 4, 2, 1):
        for i in range(LANES):
            if i & distance:
                continue
            a, b = lines[i], lines[i + distance]
            upper = [lane if not lane & distance else LANES + lane - distance for lane in range(LANES)]
            lower = [lane + distance if not lane & distance else LANES + lane for lane in range(LANES)]
            lines[i], lines[i + distance] = shuffled(builder, a, b, upper), shuffled(builder, a, b, lower)
    for i, line in enumerate(lines):
        write(builder, at(builder, target, target_stride, I64(i)), line, 4)


@operation(types.void, types.int64, types.int64, types.int64)
def pair_rows(builder: Any, first: Any, second: Any, target: Any) -> None:
    """The 32 bfloat16 at `first` and at `second`, as 32 words at `target`."""
    kind = ir.VectorType(I16, PANEL)
    rows = [read(builder, place, kind, 2) for place in (first, second)]
    for side in range(2):
        lanes = [lane + row for lane in range(LANES * side, LANES * (side + 1)) for row in (0, PANEL)]
        write(builder, builder.add(target, I64(64 * side)), shuffled(builder, rows[0], rows[1], lanes), 4)
