"""Units that lie side by side in memory, in the form in which they are held."""

from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

from winnow.kernels.pack import packed

Units = tuple[Tensor, Tensor]  # keys, values [kv_heads, units, head_dim]


class Run(Protocol):
    """Units of one store, in the same slots of every KV head."""

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

    def pick(self, index: Tensor) -> Units:
        """Keys and values of those at `index`, [kv_heads, units]; a copy."""


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

    def pick(self, index: Tensor) -> Units:
        return packed(self.keys, index), packed(self.values, index)


class Slab(Protocol):
    """What holds units of `kv_heads` heads in slots."""

    @property
    def kv_heads(self) -> int: ...


S = TypeVar("S", bound=Slab)


@dataclass(frozen=True)
class Slots(Generic[S]):
    """Slots `[start, stop)` of a slab."""

    slab: S
    start: int
    stop: int

    @property
    def kv_heads(self) -> int:
        return self.slab.kv_heads

    @property
    def units(self) -> int:
        return self.stop - self.start

    def between(self, start: int, stop: int) -> Self:
        return type(self)(self.slab, self.start + start, min(self.start + stop, self.stop))


def joined(runs: "list[Run] | tuple[Run, ...]") -> Units:
    """Runs of units as one: views where there is one that is dense, else a copy."""
    if len(runs) == 1:
        return runs[0].keys, runs[0].values
    return torch.cat([run.keys for run in runs], 1), torch.cat([run.values for run in runs], 1)


def picked(runs: "tuple[Run, ...]", index: Tensor) -> Units:
    """Keys and values of the units at `index`, [kv_heads, units], of runs that lie one after the other; a copy."""
    found = runs[0].pick(index.clamp(max=runs[0].units - 1))
    first = runs[0].units
    for run in runs[1:]:
        mine = (index >= first)[..., None]
        more = run.pick((index - first).clamp(0, run.units - 1))
        found = torch.where(mine, more[0], found[0]), torch.where(mine, more[1], found[1])
        first += run.units
    return found
