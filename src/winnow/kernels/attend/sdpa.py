"""Attention through torch's `scaled_dot_product_attention`, which has neither soft caps, sinks nor a log-sum-exp."""

import torch
import torch.nn.functional as F
from torch import Tensor

from winnow.kernels.attend.reference import visible

ROWS = 512  # a mask of 512 rows by 32768 units is 16 MiB


def attend_sdpa(
    q: Tensor, k: Tensor, v: Tensor, q_positions: Tensor, k_positions: Tensor,
    *, scale: float, past: int | None = None, window: int | None = None,
) -> Tensor:  # fmt: skip
    """The arguments of `attend()`; returns [rows, q_heads, head_dim]."""
    rows, q_heads, head_dim = q.shape
    kv_heads, units, _ = k.shape
    if window is None and past is not None:
        if rows == 1:
            # One row sees everything, so the group can stand where SDPA has rows: K and V are read once per head.
            return F.scaled_dot_product_attention(q.reshape(kv_heads, -1, head_dim), k, v, scale=scale).view_as(q)
        if past in (0, units):
            return _sdpa(q, k, v, scale, causal=past == 0)
    if past is None:
        k, v = _without_dead_units(k, v, q_positions, k_positions, window)
    parts = []
    for block, positions in zip(q.split(ROWS), q_positions.split(ROWS), strict=True):
        seen = visible(positions, k_positions, window)  # [1 or kv_heads, rows, units]
        out = _sdpa(block, k, v, scale, mask=seen.repeat_interleave(q_heads // kv_heads, 0) if len(seen) > 1 else seen)
        blind = ~seen.any(-1).T  # [rows, 1 or kv_heads]
        parts.append(out.reshape(len(block), kv_heads, -1).masked_fill(blind[..., None], 0.0).view_as(block))
    return torch.cat(parts)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = False, mask: Tensor | None = None) -> Tensor:
    batch = (q.transpose(0, 1)[None], k[None], v[None])
    out = F.scaled_dot_product_attention(
        *batch, attn_mask=None if mask is None else mask[None], is_causal=causal, scale=scale, enable_gqa=True
    )
    return out[0].transpose(0, 1)


def _without_dead_units(
    k: Tensor, v: Tensor, q_positions: Tensor, k_positions: Tensor, window: int | None
) -> tuple[Tensor, Tensor]:
    """Zeros where no row sees a unit: 0 * NaN is NaN, and dead memory may hold anything."""
    live = k_positions <= q_positions.max()
    if window is not None:
        live &= q_positions.min() - k_positions < window
    live = live.view(-1, live.shape[-1], 1)
    return (k, v) if bool(live.all()) else (k.where(live, 0.0), v.where(live, 0.0))
