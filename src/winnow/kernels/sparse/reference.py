"""Attention in which every row and query head reads units of its own: the definition."""

import torch
from torch import Tensor


def attend_masked(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, scale: float, softcap: float | None, sinks: Tensor | None
) -> Tensor:
    """Grouped-query attention with the softmax in float32.

    q: [rows, q_heads, head_dim]; k, v: [kv_heads, units, head_dim]; mask: [q_heads, rows, units] bool, what is read.
    scale, softcap, sinks: as of `attend()`.
    Returns [rows, q_heads, head_dim] in q's dtype; 0 for a row that reads nothing.
    """
    rows, q_heads, head_dim = q.shape
    kv_heads = len(k)
    grouped = q.float().view(rows, kv_heads, -1, head_dim).permute(1, 2, 0, 3)  # [kv_heads, group, rows, head_dim]
    logits = scale * (grouped @ k.float()[:, None].mT)  # [kv_heads, group, rows, units]
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    logits = logits.masked_fill(~mask.view_as(logits), float("-inf"))
    lse = logits.logsumexp(-1, keepdim=True)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.float().view(kv_heads, -1, 1, 1))
    weights = (logits - lse.masked_fill(lse.isneginf(), 0.0)).exp()
    out = weights @ v.float()[:, None]
    return out.permute(2, 0, 1, 3).reshape(rows, q_heads, head_dim).to(q.dtype)
