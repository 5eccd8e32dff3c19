"""What layers do to single rows between products, with Numba, on addresses: norm, sum, rotation, activation.

half: activations, and the weights of norms, are bfloat16, else float32. layer: the address of a row of the table of
layers. Counts are multiples of sixteen.
"""

from typing import Any

import numpy as np
from numba import njit

from winnow.kernels.attend.softmax import ONE, ZERO
from winnow.kernels.layers import tables as t
from winnow.kernels.simd.arithmetic import add, divide, exp, fma, maximum, mul, splat, sum_lanes, tanh
from winnow.kernels.simd.memory import load_bf16, load_f32, read_f32, read_i64, store_bf16, store_f32

LEAST: Any = np.float32(-80.0)  # below, 1 / (1 + e**-x) is 0 to every digit
HALF: Any = np.float32(0.5)
CUBED: Any = np.float32(0.044715)
ROOT: Any = np.float32(np.sqrt(2 / np.pi))


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
def normalise(x: int, weight: int, count: int, layer: int, y: int, half: bool) -> None:
    """y = x / rms(x) * weight, as the norms of this layer do it; y may be x."""
    size, kind = 2 if half else 4, read_i64(layer + 8 * t.NORM_KIND)
    total = splat(ZERO)
    for i in range(0, count * size, 16 * size):
        value = load(x + i, half)
        total = fma(value, value, total)
    factor = splat(np.float32(1.0) / np.sqrt(sum_lanes(total) / np.float32(count) + read_f32(layer + 8 * t.EPS)))
    lift = splat(ONE if kind == t.FROM_ONE else ZERO)
    for i in range(0, count * size, 16 * size):
        value = mul(load(x + i, half), factor)
        if kind == t.QUOTIENT_ROUNDED:
            value = store(y + i, value, half)
        store(y + i, mul(value, add(load(weight + i, half), lift)), half)


@njit(cache=True, error_model="numpy")
def add_share(x: int, y: int, count: int, share: float, half: bool) -> None:
    """x += share * y, the product rounded before it is added; y is no longer used."""
    size = 2 if half else 4
    for i in range(0, count * size, 16 * size):
        value = store(y + i, mul(load(y + i, half), splat(share)), half)
        store(x + i, add(load(x + i, half), value), half)


@njit(cache=True, error_model="numpy")
def rotate(x: int, cos: int, sin: int, head_dim: int, room: int, narrow: bool, half: bool) -> None:
    """x = x * cos + turned(x) * sin for one head; turned: halves swapped, the first negative.

    narrow: cos and sin are bfloat16 as x is, and each product is rounded; else they are float32, and the sum alone is.
    """
    size, wide = 2 if half else 4, 2 if narrow else 4
    middle = head_dim // 2
    minus = splat(-ONE)
    for i in range(0, middle, 16):
        j = i + middle
        first, second = load(x + size * i, half), load(x + size * j, half)
        a = store(room, mul(first, load(cos + wide * i, narrow)), narrow)
        b = store(room, mul(mul(second, minus), load(sin + wide * i, narrow)), narrow)
        c = store(room, mul(second, load(cos + wide * j, narrow)), narrow)
        d = store(room, mul(first, load(sin + wide * j, narrow)), narrow)
        store(x + size * i, add(a, b), half)
        store(x + size * j, add(c, d), half)


@njit(cache=True, error_model="numpy")
def activated(value: Any, kind: int) -> Any:
    if kind == t.GELU:
        inner = mul(fma(mul(mul(value, value), value), splat(CUBED), value), splat(ROOT))
        return mul(mul(value, splat(HALF)), add(splat(ONE), tanh(inner)))
    return divide(value, add(splat(ONE), exp(mul(maximum(value, splat(LEAST)), splat(-ONE)))))


@njit(cache=True, error_model="numpy")
def gate_with(gate: int, up: int, first: int, last: int, kind: int, half: bool) -> None:
    """gate = activated(gate) * up for outputs [first, last), multiples of sixteen."""
    size = 2 if half else 4
    for i in range(first * size, last * size, 16 * size):
        value = store(gate + i, activated(load(gate + i, half), kind), half)
        store(gate + i, mul(value, load(up + i, half)), half)
