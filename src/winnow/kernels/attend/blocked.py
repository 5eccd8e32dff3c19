"""Attention in plain torch, a block of rows by a block of units at a time: any device, every option, bounded memory.

The fallback where `scaled_dot_product_attention` lacks something: soft caps, sinks, or the log-sum-exp.
"""

import torch
from torch import Tensor

from winnow.kernels.attend.reference import visible

ROWS, UNITS = 256, 2048  # a block of logits of 32 query heads is 64 MiB


def attend_blocked(
    q: Tensor, k: Tensor, v: Tensor, q_positions: Tensor, k_positions: Tensor,
    *, scale: float, window: int | None = None, softcap: float | None = None, sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The arguments and results of `attend_reference`."""
    parts = [
        _attend_rows(rows, k, v, positions, k_positions, scale, window, softcap, sinks)
        for rows, positions in zip(q.split(ROWS), q_positions.split(ROWS), strict=True)
    ]
    return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts])


def _attend_rows(
    q: Tensor, k: Tensor, v: Tensor, q_positions: Tensor, k_positions: Tensor,
    scale: float, window: int | None, softcap: float | None, sinks: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A running softmax over blocks of units, for one block of rows."""
    rows, q_heads, head_dim = q.shape
    kv_heads, units, _ = k.shape
    group = q_heads // kv_heads
    grouped = scale * q.float().view(rows, kv_heads, group, head_dim).transpose(0, 1).reshape(kv_heads, -1, head_dim)
    total = grouped.new_zeros(kv_heads, rows, group)
    top = torch.full_like(total, float("-inf"))
    if sinks is not None:
        top = sinks.float().view(kv_heads, 1, group).expand_as(total)
        total = torch.ones_like(total)
    out = grouped.new_zeros(kv_heads, rows, group, head_dim)
    for start in range(0, units, UNITS):
        block = slice(start, start + UNITS)
        seen = visible(q_positions, k_positions[..., block], window)  # [1 or kv_heads, rows, units]
        live = seen.any(1)[..., None]
        if not live.any():
            continue
        # 0 * NaN is NaN: what nobody sees must not even be multiplied, its memory may hold anything.
        keys, values = k[:, block].float().where(live, 0.0), v[:, block].float().where(live, 0.0)
        logits = (grouped @ keys.mT).view(kv_heads, rows, group, -1)
        if softcap is not None:
            logits = softcap * (logits / softcap).tanh()
        logits = logits.masked_fill(~seen[:, :, None], float("-inf"))
        raised = torch.maximum(top, logits.amax(-1))
        shift = raised.masked_fill(raised.isneginf(), 0.0)  # a row that has seen nothing yet
        weights = (logits - shift[..., None]).exp()
        decay = (top - shift).exp()
        total = total * decay + weights.sum(-1)
        out = out * decay[..., None] + (weights.flatten(1, 2) @ values).view_as(out)
        top = raised
    out = (out / total.clamp_min(torch.finfo(torch.float32).tiny)[..., None]).transpose(0, 1)
    lse = (top + total.log()).transpose(0, 1)
    return out.reshape(rows, q_heads, head_dim).to(q.dtype), lse.reshape(rows, q_heads)
