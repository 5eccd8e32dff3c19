"""The logits of one row: the definition."""

import torch
from torch import Tensor


def dots_reference(q: Tensor, k: Tensor) -> Tensor:
    """The arguments and result of `dots()`; one KV head at a time, so that no float32 copy of all keys is made."""
    grouped = q.float().view(k.shape[0], -1, q.shape[1])  # [kv_heads, group, head_dim]
    out = grouped.new_empty(*grouped.shape[:2], k.shape[1])
    for queries, keys, logits in zip(grouped, k, out, strict=True):
        torch.mm(queries, keys.float().T, out=logits)
    return out.flatten(0, 1)
