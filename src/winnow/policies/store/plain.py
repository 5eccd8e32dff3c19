"""Units in the model's own dtype, on the model's own device."""

from dataclasses import dataclass

import torch

from winnow.cache.layer import Slab
from winnow.policies.base import StorePolicy


@dataclass(frozen=True)
class Plain(StorePolicy):
    """Hold keys and values as the model computed them."""

    name = "plain"
    identity = True

    def slab(self, kv_heads: int, capacity: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> Slab:
        return Slab(kv_heads, capacity, head_dim, dtype, device)
