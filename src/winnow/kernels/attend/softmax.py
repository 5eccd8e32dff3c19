"""The running softmax that both Numba kernels share, on addresses."""

from typing import Any

import numpy as np
from numba import njit

from winnow.kernels.simd.arithmetic import add, exp, fma, max_lanes, maximum, mul, splat, sum_lanes, tanh
from winnow.kernels.simd.memory import load_bf16, load_f32, read_f32, store_bf16, store_f32, write_f32

HIDDEN: Any = np.float32(-np.inf)  # the logit of a unit that a row does not see
ZERO: Any = np.float32(0.0)
ONE: Any = np.float32(1.0)


@njit(cache=True, error_model="numpy")
def fill(target: int, value: float, size: int) -> None:
    """Fill `size` bytes, a multiple of 64, with a float32."""
    for i in range(0, size, 64):
        store_f32(target + i, splat(value))


@njit(cache=True, error_model="numpy")
def copy(source: int, target: int, size: int) -> None:
    """Copy `size` bytes, a multiple of 64."""
    for i in range(0, size, 64):
        store_f32(target + i, load_f32(source + i))


@njit(cache=True, error_model="numpy")
def widen(source: int, target: int, count: int) -> None:
    """Copy `count` bfloat16, a multiple of 16, as float32."""
    for i in range(0, count, 16):
        store_f32(target + 4 * i, load_bf16(source + 2 * i))


@njit(cache=True, error_model="numpy")
def cap(logits: int, count: int, scale: float, softcap: float) -> None:
    """Scale `count` logits, a multiple of 16, and cap them: softcap * tanh(scale * logits / softcap)."""
    for j in range(0, 4 * count, 64):
        store_f32(logits + j, mul(tanh(mul(load_f32(logits + j), splat(scale / softcap))), splat(softcap)))


@njit(cache=True, error_model="numpy")
def update_softmax(
    logits: int, count: int, scale: float, top_place: int, total_place: int, sums: int, head_dim: int, narrow: bool
) -> None:
    """Turn one vector's `count` logits (a multiple of 16) into weights e**(scale * logit - top), top a running maximum.

    At `top_place` and `total_place` lie the running maximum and denominator, at `sums` the head_dim float32 summed so
    far; where the maximum is raised, these are rescaled. narrow: the weights are stored as bfloat16, from `logits` on.
    """
    best = splat(HIDDEN)
    for j in range(0, 4 * count, 64):
        best = maximum(load_f32(logits + j), best)
    top, total = read_f32(top_place), read_f32(total_place)
    raised = max(top, scale * max_lanes(best))
    if raised == HIDDEN:  # the row sees nothing here, and saw nothing before
        fill(logits, ZERO, 4 * count)
        return
    if raised > top:
        factor = exp(splat(top - raised))
        total *= max_lanes(factor)
        for c in range(0, 4 * head_dim, 64):
            store_f32(sums + c, mul(load_f32(sums + c), factor))
        write_f32(top_place, raised)
    factor, shift = splat(scale), splat(-raised)
    added = splat(ZERO)
    for j in range(0, count, 16):
        weight = exp(fma(load_f32(logits + 4 * j), factor, shift))
        added = add(added, weight)
        if narrow:
            store_bf16(logits + 2 * j, weight)
        else:
            store_f32(logits + 4 * j, weight)
    write_f32(total_place, total + sum_lanes(added))


@njit(cache=True, error_model="numpy")
def lse_of(top: float, total: float) -> float:
    """The log-sum-exp of a running maximum and denominator."""
    return np.float32(top + np.log(total)) if total > 0 else HIDDEN  # type: ignore[return-value]
