"""Linear layers whose weights stay packed: at few rows multiplied as they are, at many expanded piece by piece.

weight.py   the layout, what it stands for, and rounding to it
cpu.py      Numba: products of few rows, and packed weights as floats
lanes.py    the vector code of both
"""

import functools
import threading
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from winnow.kernels.launch import match_torch_threads, numba_missing, parts_of_work
from winnow.kernels.linear.many import by_pieces
from winnow.kernels.packed.weight import KINDS, ROWS, TILE, PackedWeight, pack, quantize, row_bytes, tiles_bytes

__all__ = [
    "KINDS", "PackedWeight", "expand", "few_of", "few_rows", "linear", "pack", "quantize", "row_bytes",
    "rows_of", "tiles_bytes", "why_slow",
]  # fmt: skip

CANDIDATES = (4, 8, 16, 32, 64, 128)  # counts of rows up to which products may be faster than expanding
DIRECT = (torch.bfloat16, torch.float32)  # what the kernels take and give
_room = threading.local()


def why_slow(weight: PackedWeight) -> str | None:
    """Why the kernels cannot serve this weight, or None where they can."""
    if weight.data.device.type != "cpu":
        return f"the weight is on {weight.data.device}, the kernels are for CPUs"
    if weight.tiled is None:
        return "the weight is not in tiles"
    return numba_missing()


def few_of(weight: PackedWeight, dtype: torch.dtype) -> int:
    """Up to how many rows of `dtype` this weight is multiplied as it is; 0 where the kernels cannot serve it."""
    kind = dtype if dtype in DIRECT else torch.float32
    return 0 if why_slow(weight) is not None else few_rows(weight.kind, weight.minima, kind)


def linear(x: Tensor, weight: PackedWeight, bias: Tensor | None = None, few: int | None = None) -> Tensor:
    """x @ weight.T + bias, [..., columns] -> [..., rows of the weight], in x's dtype; summed in float32; no autograd.

    few: up to how many rows of x the weight is multiplied as it is; None: `few_of`. bias: in x's dtype.
    """
    rows = x.numel() // weight.columns
    if 0 < rows <= (few_of(weight, x.dtype) if few is None else few):
        if x.dtype in DIRECT:
            return _product(x, weight, bias, rows)
        return _product(x.float(), weight, None if bias is None else bias.float(), rows).to(x.dtype)
    return by_pieces(x, weight.shape, lambda piece, kind: expand(weight[piece], kind, shared=True), bias)


def expand(weight: PackedWeight, dtype: torch.dtype, *, shared: bool = False) -> Tensor:
    """The weight as floats, [rows, columns]. shared: in memory that this thread's next shared call overwrites."""
    if why_slow(weight) is not None or dtype not in DIRECT:
        return weight.float().to(dtype)
    rows, columns = len(weight.data), weight.columns
    out = (
        _memory(dtype, rows * columns)[: rows * columns]
        if shared
        else torch.empty(rows * columns, dtype=dtype, device="cpu")
    )
    _expand(weight, out, len(weight.data) // TILE)
    return out.view(rows, columns)[: weight.shape[0]]


def rows_of(weight: PackedWeight, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Some rows as floats: [...] int64 -> [..., columns]. Raises IndexError where there is no such row."""
    if why_slow(weight) is not None or dtype not in DIRECT:
        return weight.picked(ids.flatten()).float().to(dtype).view(*ids.shape, -1)
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < weight.shape[0]:
        raise IndexError(f"rows {int(ids.min())} to {int(ids.max())} of a weight with {weight.shape[0]}")
    ids, out = ids.long().contiguous(), torch.empty(*ids.shape, weight.columns, dtype=dtype, device="cpu")
    _expand(weight, out, ids.numel(), ids.data_ptr())
    return out


@functools.cache
def few_rows(kind: int, minima: bool, dtype: torch.dtype) -> int:
    """Up to how many rows multiplying packed weights is faster here than expanding them: measured once, in some 80 ms.

    A layer of 1,536 rows and 576 columns; 0 where the kernels do not run.
    """
    codes = torch.zeros(1536, 576, dtype=torch.uint8 if KINDS[kind][0] == 4 else torch.int8, device="cpu")
    factors = torch.ones(1536, 576 // KINDS[kind][1], dtype=torch.float32, device="cpu")
    weight = pack(codes, factors, factors if minima else None)
    if weight is None or why_slow(weight := weight.in_tiles()) is not None:
        return 0
    best = 0
    for rows in CANDIDATES:
        x = torch.zeros(rows, 576, dtype=dtype, device="cpu")
        if _seconds(x, weight, rows) > _seconds(x, weight, 0):
            break
        best = rows
    return best


def _seconds(x: Tensor, weight: PackedWeight, few: int) -> float:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        linear(x, weight, None, few)
        times.append(time.perf_counter() - start)
    return min(times)


def _product(x: Tensor, weight: PackedWeight, bias: Tensor | None, rows: int) -> Tensor:
    kernel, scratch_bytes = _kernels()
    data, row_bytes, outs, columns, group = weight.facts
    halves, threads = x.dtype == torch.bfloat16, parts_of_work()
    padded = 1 if rows == 1 else -(-rows // ROWS) * ROWS
    shape = (*x.shape[:-1], outs)
    x = x.contiguous() if padded == rows else F.pad(x.reshape(rows, columns), (0, 0, 0, padded - rows))
    y = x.new_empty(shape if padded == rows else (padded, outs))
    scratch = _memory(torch.uint8, threads * scratch_bytes(padded, columns))
    match_torch_threads()
    kernel(
        threads, x.data_ptr(), data, 0 if bias is None else bias.data_ptr(), y.data_ptr(), scratch.data_ptr(), padded,
        outs, columns, row_bytes, group, weight.kind, weight.minima, halves,
    )  # fmt: skip
    return y if padded == rows else y[:rows].view(shape)


@functools.cache
def _kernels() -> tuple[Any, Any]:
    """Imported when first used, since that compiles them."""
    from winnow.kernels.packed.cpu import product_kernel, scratch_bytes

    return product_kernel, scratch_bytes


def _expand(weight: PackedWeight, out: Tensor, count: int, rows: int = 0) -> None:
    """So many tiles, or rows, whose numbers are at an address."""
    from winnow.kernels.packed.cpu import EXPANDED, expand_kernel

    threads = parts_of_work()
    scratch = _memory(torch.uint8, EXPANDED * threads)
    match_torch_threads()
    expand_kernel(
        threads, weight.data.data_ptr(), rows, out.data_ptr(), scratch.data_ptr(), count, weight.columns,
        weight.data.shape[1], weight.kind, weight.minima, out.dtype == torch.bfloat16,
    )  # fmt: skip


def _memory(dtype: torch.dtype, count: int) -> Tensor:
    """Memory of this thread, at least [count], kept from call to call: it only grows."""
    kept: dict[Any, Tensor] = _room.__dict__
    if (found := kept.get(dtype)) is None or found.numel() < count:
        found = kept[dtype] = torch.empty(count, dtype=dtype, device="cpu")
    return found
