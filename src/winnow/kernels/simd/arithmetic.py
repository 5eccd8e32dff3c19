"""Arithmetic on sixteen lanes, and sums and products over them."""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types

from winnow.kernels.simd.build import call, constant, halves, operation, read, shuffled, spread
from winnow.kernels.simd.kinds import BF16X32, F32, F32X16, HAS_BF16_DOT, I32X16, I64, LANES, vector


@operation(vector, vector, types.int64, types.int64, types.int64)
def hidden_unless_seen(builder: Any, logits: Any, k_positions: Any, q_position: Any, window: Any) -> Any:
    """-inf in the lanes whose unit, of the 16 positions at `k_positions`, the row does not see; window 0: none."""
    kind = ir.VectorType(I64, LANES)
    distance = builder.sub(spread(builder, q_position), read(builder, k_positions, kind, 8))
    reach = builder.select(builder.icmp_signed("==", window, I64(0)), I64(2**63 - 1), window)
    causal = builder.icmp_signed(">=", distance, constant(0, kind))
    seen = builder.and_(causal, builder.icmp_signed("<", distance, spread(builder, reach)))
    return builder.select(seen, logits, constant(float("-inf"), F32X16))


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
    for pair in zip(*(halves(builder, read(builder, address, I32X16, 2)) for address in (a, b)), strict=True):
        sums = call(builder, "llvm.fma.v16f32", F32X16, *pair, sums)
    return sums


def emit_dot_f32(builder: Any, sums: Any, a: Any, b: Any) -> Any:
    """Add the products of the 16 float32 at address `a` with the 16 at `b` to the lanes."""
    return call(builder, "llvm.fma.v16f32", F32X16, read(builder, a, F32X16, 4), read(builder, b, F32X16, 4), sums)


dot_bf16 = operation(vector, vector, types.int64, types.int64)(emit_dot_bf16)
dot_f32 = operation(vector, vector, types.int64, types.int64)(emit_dot_f32)
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


def sums_of_four(builder: Any, vectors: list[Any]) -> Any:
    """The same of four vectors, in four lanes."""
    quarters = []
    for folded in vectors:
        for half in (8, 4):
            lower, upper = (shuffled(builder, folded, folded, range(start, start + half)) for start in (0, half))
            folded = builder.fadd(lower, upper)
        quarters.append(folded)
    for lanes in (((0, 4, 1, 5), (2, 6, 3, 7)), ((0, 1, 4, 5), (2, 3, 6, 7))):  # none is a slow horizontal addition
        pairs = zip(quarters[::2], quarters[1::2], strict=True)
        quarters = [builder.fadd(*(shuffled(builder, a, b, each) for each in lanes)) for a, b in pairs]
    return quarters[0]
