"""Units that lie side by side in memory, in the form in which they are held."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

Units = tuple[Tensor, Tensor]  # keys, values [kv_heads, units, head_dim]


class Run(Protocol):
    """Units of one store, the same number of every KV head."""

    @property
    def kv_heads(self) -> int:
        """Of the model."""

    @property
    def units(self) -> int:
        """Per KV head."""

    @property
    def keys(self) -> Tensor:
        """[kv_heads, units, head_dim] in the model's dtype; a copy where they are held in another form."""

    @property
    def values(self) -> Tensor:
        """The same."""

    def between(self, start: int, stop: int) -> "Run":
        """Some of them."""


class Dense(NamedTuple):
    """Units as the model made them: keys and values [kv_heads, units, head_dim], usually views of a slab."""

    keys: Tensor
    values: Tensor

    @property
    def kv_heads(self) -> int:
        return len(self.keys)

    @property
    def units(self) -> int:
        return self.keys.shape[1]

    def between(self, start: int, stop: int) -> "Dense":
        return Dense(self.keys[:, start:stop], self.values[:, start:stop])


def joined(runs: "list[Run] | tuple[Run, ...]") -> Units:
    """Runs of units as one: views where there is one that is dense, else a copy."""
    if len(runs) == 1:
        return runs[0].keys, runs[0].values
    return torch.cat([run.keys for run in runs], 1), torch.cat([run.values for run in runs], 1)
