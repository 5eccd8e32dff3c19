"""Memory of units: slabs, and slots that run through several of them where forks share what came before."""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

COPIED = 64  # slots of its own that a fork copies rather than share: every run that is shared is read apart
Units = tuple[Tensor, Tensor]  # keys, values [kv_heads, units, head_dim]


class Slab:
    """Room for `capacity` units per KV head: keys and values `[kv_heads, capacity, head_dim]`."""

    def __init__(self, kv_heads: int, capacity: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self.keys = torch.empty(kv_heads, capacity, head_dim, dtype=dtype, device=device)
        self.values = torch.empty(kv_heads, capacity, head_dim, dtype=dtype, device=device)

    @property
    def capacity(self) -> int:
        return self.keys.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes reserved for keys and values."""
        return self.keys.nbytes + self.values.nbytes

    @cached_property
    def place(self) -> tuple[int, int, int, int]:
        """The addresses of keys and values, and the bytes from one KV head and from one unit to the next."""
        keys = self.keys
        return keys.data_ptr(), self.values.data_ptr(), keys.stride(0) * keys.itemsize, keys.stride(1) * keys.itemsize

    def run(self, start: int, stop: int) -> Units:
        return self.keys[:, start:stop], self.values[:, start:stop]


class Memory:
    """The slots of one layer of one sequence: some that forks share and nobody writes, then those of its own.

    own: the slab behind the shared slots; offset: how many these are. make: capacity -> Slab. shares: whether forks
    share at all.
    """

    def __init__(self, make: Callable[[int], Slab], capacity: int, *, shares: bool = True) -> None:
        self._make, self._shares = make, shares
        self._shared: list[tuple[Slab, int]] = []  # slabs, and how many slots of each, from its first on
        self.own = make(capacity)
        self.offset = 0

    @property
    def capacity(self) -> int:
        return self.offset + self.own.capacity

    @property
    def nbytes(self) -> int:
        """Bytes reserved, also of what is shared."""
        return self.own.nbytes + sum(slab.nbytes for slab, _ in self._shared)

    @property
    def measures(self) -> tuple[tuple[int, int], ...]:
        """Slots of all slabs, and how many of each are shared."""
        return *((slab.capacity, slots) for slab, slots in self._shared), (self.own.capacity, 0)

    def pieces(self, start: int, stop: int) -> list[tuple[Slab, int, int]]:
        """Where the slots `[start, stop)` lie: slabs, and in each the first slot and the one behind the last."""
        found, first = [], 0
        for slab, slots in self._shared:
            if first < stop and start < first + slots:
                found.append((slab, max(start - first, 0), min(stop - first, slots)))
            first += slots
        if stop > self.offset or not found:
            found.append((self.own, max(start, self.offset) - self.offset, max(stop, self.offset) - self.offset))
        return found

    def runs(self, start: int, stop: int) -> list[Units]:
        """The units in slots `[start, stop)`, as views of memory, one after the other."""
        return [slab.run(first, last) for slab, first, last in self.pieces(start, stop)]

    def read(self, start: int, stop: int) -> Units:
        """The same as one: a view, or where they lie in several slabs a copy."""
        return joined(self.runs(start, stop))

    def write(self, start: int, keys: Tensor, values: Tensor) -> None:
        """Put units into slots from `start` on, none of which is shared."""
        place = slice(start - self.offset, start - self.offset + keys.shape[1])
        self.own.keys[:, place] = keys
        self.own.values[:, place] = values

    def grow(self, capacity: int, stop: int) -> None:
        """Make room for `capacity` own slots; those up to `stop` move."""
        target, used = self._make(capacity), stop - self.offset
        target.keys[:, :used], target.values[:, :used] = self.own.run(0, used)
        self.own = target

    def settle(self, slab: Slab) -> None:
        """From now on all slots are those of `slab`, into which what lives has been moved."""
        self._shared, self.offset, self.own = [], 0, slab

    def fork(self, stop: int) -> "Memory":
        """The same units up to slot `stop` once more, in shared memory but for a few, or all copied."""
        if self._shares and stop - self.offset > COPIED:
            self._shared.append((self.own, stop - self.offset))
            self.offset, self.own = stop, self._make(0)
        twin = Memory(self._make, self.own.capacity, shares=self._shares)
        twin._shared, twin.offset = list(self._shared), self.offset
        twin.write(self.offset, *self.own.run(0, stop - self.offset))
        return twin

    def cut(self, stop: int) -> None:
        """Give up the slots from `stop` on."""
        first, kept = 0, []
        for slab, slots in self._shared:
            if first < stop:
                kept.append((slab, min(slots, stop - first)))
            first += slots
        if stop < self.offset:
            self.own = self._make(0)
        self._shared, self.offset = kept, min(self.offset, stop)


def joined(runs: list[Units]) -> Units:
    """Runs of units as one."""
    if len(runs) == 1:
        return runs[0]
    keys, values = (torch.cat(parts, 1) for parts in zip(*runs, strict=True))
    return keys, values
