"""The units whose keys a query matches best, as far as a bit of every channel tells: read instead of the keys.

reference.py  the definition, in torch: any device
cpu.py        Numba: decode steps, also within the layers' kernel

A key k of n channels is known by the centre c of some keys, the signs of y = R (k - c), R a rotation, and a length
t = |y|^2 / |y|_1; of a query q, the estimate of q . k is q . c + t times the sum over channels of sign(y_i) (R q)_i,
these rounded to eight bits, the largest of a query being 127.

Source: Gao and Long, RaBitQ, arXiv:2405.12497, sections 3.1 to 3.3, where queries are rounded to four bits at random.
"""

from torch import Tensor

from winnow.kernels.attend import kernel_for
from winnow.kernels.signs.reference import (
    BLOCK,
    CHANNELS,
    Signs,
    best_units_reference,
    estimates,
    pack,
    rotation,
    signs_of,
)

__all__ = [
    "BLOCK",
    "CHANNELS",
    "Signs",
    "best_units",
    "best_units_reference",
    "estimates",
    "pack",
    "rotation",
    "signs_of",
]


def best_units(query: Tensor, signs: Signs, count: int) -> Tensor:
    """Index [kv_heads, count] int64, ascending, of the units with the highest estimates of any query head.

    Args:
        query: [q_heads, head_dim], bfloat16 or float32.
        signs: of the units of every KV head, the first of which is number 0.
    Raises:
        ValueError: shapes do not fit, or there are not `count` units.
    """
    kv_heads, head_dim = signs.centre.shape
    if query.shape[1] != head_dim or len(query) % kv_heads:
        raise ValueError(f"best_units: query {tuple(query.shape)} does not fit keys of {kv_heads} x {head_dim}")
    if not 1 <= count <= signs.units:
        raise ValueError(f"best_units: count={count} of {signs.units} units")
    if kernel_for(query.device.type, query.dtype, len(query) // kv_heads, head_dim, plain=False) == "decode":
        from winnow.kernels.signs.cpu import best_units_cpu

        return best_units_cpu(query, signs, count)
    return best_units_reference(query, signs, count)
