"""Join attention over disjoint sets of units, from each one's output and log-sum-exp."""

from collections.abc import Sequence

import torch
from torch import Tensor


def merge(parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Attention over the union of disjoint sets of units.

    parts: (out [rows, q_heads, head_dim], log-sum-exp [rows, q_heads] float32) of each set; a set with nothing visible
    to a row has out 0 and log-sum-exp -inf there. Returns [rows, q_heads, head_dim] in the dtype of the outputs.
    """
    out, lse = parts[0][0].float(), parts[0][1]
    for other, other_lse in parts[1:]:
        share = (other_lse - lse).sigmoid().nan_to_num(0.0)  # both -inf: the row has seen nothing in either
        out = torch.lerp(out, other.float(), share[..., None])
        lse = torch.logaddexp(lse, other_lse)
    return out.to(parts[0][0].dtype)
