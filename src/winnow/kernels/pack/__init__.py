"""Copy chosen units of every KV head side by side, so that later steps read them at the speed of memory."""

import torch
from torch import Tensor

from winnow.kernels.launch import numba_missing
from winnow.kernels.pack.reference import pack_reference

__all__ = ["move", "pack", "pack_reference", "packed"]

CHUNK = 64  # bytes that the Numba kernel copies at once


def pack(units: Tensor, index: Tensor, out: Tensor) -> None:
    """out[h, i] = units[h, index[h, i]].

    Args:
        units: keys or values, [kv_heads, units, head_dim], each head's units side by side; usually a view into a slab.
        index: [kv_heads, count] int64, on the device of the units.
        out: [kv_heads, count, head_dim] of the dtype of the units, each head's side by side; not overlapping them.
    Raises:
        ValueError: shapes, strides or dtypes are not as above, or an index is out of range.
    """
    _check(units, index, out)
    if _by_numba(units):
        from winnow.kernels.pack.cpu import pack_cpu

        pack_cpu(units, index, out)
    else:
        pack_reference(units, index, out)


def packed(units: Tensor, index: Tensor) -> Tensor:
    """The same in new memory, [kv_heads, count, head_dim]."""
    out = units.new_empty(*index.shape, units.shape[2])
    pack(units, index, out)
    return out


def move(units: Tensor, index: Tensor, out: Tensor) -> None:
    """The same where `out` may be memory of the units themselves: index ascends, and no unit moves to the right."""
    _check(units, index, out)
    if _by_numba(units):
        from winnow.kernels.pack.cpu import pack_cpu

        pack_cpu(units, index, out, in_order=True)
        return
    for mine, places, target in zip(units, index, out, strict=True):
        target.copy_(mine[places])


def _by_numba(units: Tensor) -> bool:
    whole = units.shape[2] * units.itemsize % CHUNK == 0
    return units.device.type == "cpu" and whole and numba_missing() is None


def _check(units: Tensor, index: Tensor, out: Tensor) -> None:
    kv_heads, _, head_dim = units.shape
    if out.shape != (*index.shape, head_dim) or len(index) != kv_heads:
        got = f"units {tuple(units.shape)}, index {tuple(index.shape)}, out {tuple(out.shape)}"
        raise ValueError(f"pack: shapes do not fit: {got}")
    if units.dtype != out.dtype or index.dtype != torch.int64:
        raise ValueError(f"pack: units {units.dtype}, out {out.dtype}, index {index.dtype}; one dtype, and int64")
    if units.stride()[1:] != (head_dim, 1) or out.stride()[1:] != (head_dim, 1):
        raise ValueError(f"pack: units of a head must lie side by side, not {units.stride()}, out {out.stride()}")
