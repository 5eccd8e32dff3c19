"""Join attention over disjoint sets of units, from each one's output and log-sum-exp."""

from collections.abc import Sequence

import torch
from torch import Tensor


def merge(parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Attention over the union of disjoint sets of units.

    parts: (out [rows, q_heads, head_dim], log-sum-exp [rows, q_heads] float32) of each set; a set with nothing visible
    to a row has out 0 and log-sum-exp -inf there. Returns [rows, q_heads, head_dim] in the dtype of the outputs.
    """
    lse = torch.stack([lse for _, lse in parts])  # [parts, rows, q_heads]
    total = lse.logsumexp(0).nan_to_num(neginf=0.0)
    weights = (lse - total).exp()[..., None]  # [parts, rows, q_heads, 1]
    out = sum(weight * out.float() for weight, (out, _) in zip(weights, parts, strict=True))
    return out.to(parts[0][0].dtype)  # type: ignore[union-attr]
