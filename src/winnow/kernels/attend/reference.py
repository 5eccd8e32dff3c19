"""Attention of the rows of one sequence over its cache units in one layer: the definition."""

import torch
from torch import Tensor


def attend_reference(
    q: Tensor, k: Tensor, v: Tensor, q_positions: Tensor, k_positions: Tensor,
    *, scale: float, past: int | None = None, window: int | None = None, softcap: float | None = None,
    sinks: Tensor | None = None, index: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The arguments of `attend()`; `past` is only a promise about positions, so it is not used.

    Returns the output, [rows, q_heads, head_dim] in q's dtype, and lse, [rows, q_heads] float32: the logarithm of the
    softmax denominator, the sink included.
    """
    rows, q_heads, head_dim = q.shape
    if index is not None:
        k, v = (each.gather(1, index[..., None].expand(-1, -1, head_dim)) for each in (k, v))
    kv_heads, units, _ = k.shape
    seen = visible(q_positions, k_positions, window).expand(kv_heads, rows, units)
    # 0 * NaN is NaN: what nobody sees must not even be multiplied, its memory may hold anything.
    live = seen.any(1)[..., None]  # [kv_heads, units, 1]
    k, v = k.float().where(live, 0.0), v.float().where(live, 0.0)
    grouped = q.float().view(rows, kv_heads, q_heads // kv_heads, head_dim).permute(1, 2, 0, 3)
    logits = scale * grouped @ k[:, None].mT  # [kv_heads, group, rows, units]
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    logits = logits.masked_fill(~seen[:, None], float("-inf"))
    lse = logits.logsumexp(-1)  # [kv_heads, group, rows]
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.float().view(kv_heads, -1, 1))
    # A row that sees nothing has lse -inf; its weights are e**(-inf - 0) = 0 instead of NaN.
    weights = (logits - lse.masked_fill(lse.isneginf(), 0.0)[..., None]).exp()
    out = (weights @ v[:, None]).permute(2, 0, 1, 3).reshape(rows, q_heads, head_dim)
    return out.to(q.dtype), lse.permute(2, 0, 1).reshape(rows, q_heads)


def visible(q_positions: Tensor, k_positions: Tensor, window: int | None) -> Tensor:
    """[rows], [units] or [kv_heads, units] -> [1 or kv_heads, rows, units] bool: which row sees which unit."""
    distance = q_positions[:, None] - k_positions.view(-1, 1, k_positions.shape[-1])
    return (distance >= 0) if window is None else (distance >= 0) & (distance < window)
