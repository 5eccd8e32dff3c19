"""Attention of one row in plain torch, which gives its logits away: any device, every option."""

import torch
from torch import Tensor

from winnow.kernels.attend.reference import visible


def attend_one_row(
    q: Tensor, k: Tensor, v: Tensor, q_positions: Tensor, k_positions: Tensor,
    *, scale: float, window: int | None = None, softcap: float | None = None, sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The arguments of `attend()` for one row, and its three results with `return_logits`.

    One KV head at a time, so that no float32 copy of all keys or values is made.
    """
    kv_heads, units, head_dim = k.shape
    seen = visible(q_positions, k_positions, window).expand(kv_heads, 1, units)
    grouped = scale * q.float().reshape(kv_heads, -1, head_dim)  # [kv_heads, group, head_dim]
    logits = torch.stack([queries @ keys.float().mT for queries, keys in zip(grouped, k, strict=True)])
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    logits = logits.masked_fill(~seen, float("-inf"))  # [kv_heads, group, units]; also over NaN of dead memory
    lse = logits.logsumexp(-1)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.float().view(kv_heads, -1))
    # A row that sees nothing has lse -inf; its weights are e**(-inf - 0) = 0 instead of NaN.
    weights = (logits - lse.masked_fill(lse.isneginf(), 0.0)[..., None]).exp()
    # 0 * NaN is NaN: what the row does not see must not even be multiplied.
    values = (head.float().where(live.mT, 0.0) for head, live in zip(v, seen, strict=True))
    out = torch.stack([weight @ value for weight, value in zip(weights, values, strict=True)])
    return out.view_as(q).to(q.dtype), lse.view(1, -1), logits.flatten(0, 1)
