"""Copy chosen units of every KV head: the definition."""

import torch
from torch import Tensor


def pack_reference(units: Tensor, index: Tensor, out: Tensor) -> None:
    """The arguments of `pack()`."""
    for head, chosen, target in zip(units, index, out, strict=True):
        torch.index_select(head, 0, chosen, out=target)
