"""Attention of the rows of one sequence over its cache units in one layer.

reference.py     the definition
cpu_decode.py    few rows: Numba, bounded by reading K and V once
cpu_prefill.py   many rows: Numba, bounded by two matrix products
sdpa.py          torch's scaled_dot_product_attention: GPUs, and CPUs without Numba
blocked.py       plain torch, for what SDPA does not have
one_row.py       plain torch, for one row whose logits are wanted
"""

import functools
import logging

import torch
from torch import Tensor

from winnow.kernels.attend.blocked import attend_blocked
from winnow.kernels.attend.one_row import attend_one_row
from winnow.kernels.attend.reference import attend_reference
from winnow.kernels.attend.sdpa import attend_sdpa
from winnow.kernels.floats import floats
from winnow.kernels.launch import numba_missing
from winnow.kernels.pack import packed

__all__ = ["attend", "attend_reference", "kernel_for"]

log = logging.getLogger(__name__)

# Above this many query vectors per KV head the decode kernel is bounded by arithmetic, which matrix products do better.
DECODE_VECTORS = 32
LARGEST_HEAD = 256


def attend(
    q: Tensor, k: Tensor, v: Tensor, q_positions: Tensor, k_positions: Tensor,
    *, scale: float, past: int | None = None, window: int | None = None, softcap: float | None = None,
    sinks: Tensor | None = None, return_lse: bool = False, return_logits: bool = False, index: Tensor | None = None,
) -> Tensor | tuple[Tensor, ...]:  # fmt: skip
    """Grouped-query attention with the softmax in float32.

    Args:
        q: [rows, q_heads, head_dim].
        k, v: [kv_heads, units, head_dim], the two inner dimensions contiguous; usually views into larger slabs.
        q_positions: [rows] int64.
        k_positions: [units] or [kv_heads, units] int64. A row sees a unit iff `k_position <= q_position` and, with a
            window, `q_position - k_position < window`. A dead slot has position 2**62; its memory is never used.
        scale: factor of the logits.
        past: number of leading units that every row is known to see by causality. The others are then the rows
            themselves, in the same order, or there are none. None: nothing is known, positions are compared.
        softcap: Gemma-2's cap, `softcap * tanh(logits / softcap)`, before masking.
        sinks: [q_heads], GPT-OSS's attention sinks: one more logit in the denominator of the softmax only.
        index: [kv_heads, units] int64: the units are those of k and v at these places, which may have more; None: all.
    Returns:
        [rows, q_heads, head_dim] in q's dtype, and with `return_lse` also [rows, q_heads] float32, the logarithm of the
        softmax denominator, the sink included. A row that sees no unit yields 0 and, without a sink, -inf.
        With `return_logits`, for one row: both, and [q_heads, units] float32, the logits as the softmax sees them,
        scaled and capped, -inf where the row does not see a unit. They cost no second pass over the keys.
    Raises:
        ValueError: shapes, strides or dtypes are not as above, a place is out of range, or the logits of several rows
            are asked for.
    """
    _check(q, k, v, q_positions, k_positions, scale, past, sinks, index)
    rows, q_heads, head_dim = q.shape
    if return_logits and rows != 1:
        raise ValueError(f"return_logits: {rows} rows, but only the logits of one row are given; attend row by row")
    if past is not None and window is None and k_positions.dim() == 2:  # the same triangle for all heads
        k_positions = torch.arange(k_positions.shape[1], device=k.device)
        q_positions = torch.arange(past, past + rows, device=k.device)
    kernel = kernel_for(
        q.device.type, q.dtype, rows * q_heads // k.shape[0], head_dim,
        plain=softcap is None and sinks is None and not return_lse and not return_logits,
    )  # fmt: skip
    if kernel == "decode":
        from winnow.kernels.attend.cpu_decode import attend_decode

        logits = floats(q_heads, k_positions.shape[-1]) if return_logits else None
        out, lse = attend_decode(
            q, k, v, q_positions, k_positions, scale=scale, past=past, window=window, softcap=softcap, sinks=sinks,
            return_lse=return_lse or return_logits, logits=logits, index=index,
        )  # fmt: skip
        if lse is None:
            return out
        return (out, lse) if logits is None else (out, lse, logits)
    if index is not None:
        k, v = (packed(each, index) for each in (k, v))
    if return_logits:
        return attend_one_row(
            q, k, v, q_positions, k_positions, scale=scale, window=window, softcap=softcap, sinks=sinks
        )
    if kernel == "prefill":
        from winnow.kernels.attend.cpu_prefill import attend_prefill

        out, lse = attend_prefill(
            q, k, v, q_positions, k_positions,
            scale=scale, window=window, softcap=softcap, sinks=sinks, return_lse=return_lse,
        )  # fmt: skip
        return (out, lse) if lse is not None else out
    if kernel == "sdpa":
        return attend_sdpa(q, k, v, q_positions, k_positions, scale=scale, past=past, window=window)
    out, lse = attend_blocked(
        q, k, v, q_positions, k_positions, scale=scale, window=window, softcap=softcap, sinks=sinks
    )
    return (out, lse) if return_lse else out


@functools.cache
def kernel_for(device: str, dtype: torch.dtype, vectors: int, head_dim: int, *, plain: bool) -> str:
    """The name of the kernel for `vectors` query vectors per KV head; plain: no soft cap, sinks or log-sum-exp."""
    why = _no_numba_kernel(device, dtype, head_dim)
    if why is None and vectors <= DECODE_VECTORS:
        name = "decode"
    elif why is None:
        name = "prefill"
    else:
        name = "sdpa" if plain else "blocked"
    log.debug("%s for %d vectors of %d %s on %s (%s)", name, vectors, head_dim, dtype, device, why or "Numba")
    return name


def _no_numba_kernel(device: str, dtype: torch.dtype, head_dim: int) -> str | None:
    """Why the Numba kernels cannot serve this, or None."""
    if device != "cpu":
        return "not a CPU"
    if dtype not in (torch.float32, torch.bfloat16):
        return f"no Numba kernel for {dtype}"
    if head_dim % 32:
        return f"head_dim {head_dim} is no multiple of 32"
    if head_dim > LARGEST_HEAD:
        return f"head_dim {head_dim} is above {LARGEST_HEAD}"
    return numba_missing()


def _check(
    q: Tensor, k: Tensor, v: Tensor, q_positions: Tensor, k_positions: Tensor,
    scale: float, past: int | None, sinks: Tensor | None, index: Tensor | None,
) -> None:  # fmt: skip
    rows, q_heads, head_dim = q.shape
    kv_heads, held, _ = k.shape
    units = held if index is None else index.shape[-1]
    if k.shape != v.shape or k.shape[2] != head_dim or q_heads % kv_heads or not rows or not units:
        raise ValueError(f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    if k.stride()[1:] != (head_dim, 1) or v.stride()[1:] != (head_dim, 1):
        raise ValueError(f"k, v: the units of a head must lie side by side, strides are {k.stride()} and {v.stride()}")
    if index is not None:
        _check_index(index, kv_heads, held)
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"one dtype for q, k and v, not {q.dtype}, {k.dtype}, {v.dtype}")
    if scale <= 0:
        raise ValueError(f"scale={scale} must be positive")
    if q_positions.shape != (rows,) or k_positions.shape not in ((units,), (kv_heads, units)):
        got = f"{tuple(q_positions.shape)}, {tuple(k_positions.shape)}"
        raise ValueError(f"positions {got} for {rows} rows and {units} units")
    if past not in (None, units - rows, units):
        raise ValueError(f"past={past}: with {rows} rows and {units} units it is {units - rows}, {units} or None")
    if sinks is not None and sinks.shape != (q_heads,):
        raise ValueError(f"sinks {tuple(sinks.shape)}: one per query head, {q_heads}")


def _check_index(index: Tensor, kv_heads: int, held: int) -> None:
    if index.dtype != torch.int64 or index.dim() != 2 or len(index) != kv_heads or not index.numel():
        raise ValueError(f"index: [kv_heads, units] int64, not {list(index.shape)} {index.dtype} for {kv_heads} heads")
    least, most = (int(each) for each in index.aminmax())
    if least < 0 or most >= held:
        raise ValueError(f"index: places from {least} to {most}, but k and v have units 0 to {held - 1}")
