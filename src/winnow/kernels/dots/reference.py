"""The logits of one row: the definition."""

import torch
from torch import Tensor


def dots_reference(q: Tensor, k: Tensor) -> Tensor:
    """The arguments and result of `dots()`; one KV head at a time, so that no float32 copy of all keys is made."""
    grouped = q.float().view(k.shape[0], -1, q.shape[1])  # [kv_heads, group, head_dim]
    return torch.cat([queries @ keys.float().T for queries, keys in zip(grouped, k, strict=True)])
