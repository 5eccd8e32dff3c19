"""Memory of units: slabs, and slots that run through several of them where forks share what came before."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from winnow.cache.ragged import RaggedSlab
from winnow.cache.run import Dense, Run, Units, joined
from winnow.cache.settled import SettledSlab

COPIED = 64  # slots of its own that a fork copies rather than share: every run that is shared is read apart


class Bringing(Protocol):
    """Brings slabs into memory, all of them at once."""

    def fetch(self, wanted: set[Any]) -> None: ...


class Slab:
    """Room for `capacity` units per KV head: keys and values `[kv_heads, capacity, head_dim]`.

    units: how many there were when forks came to share it; nobody has written any since. files: what brings it there,
    where it is not in memory all the time.
    """

    addressed = True
    units = 0
    files: Bringing | None = None

    def __init__(self, kv_heads: int, capacity: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self.keys = torch.empty(kv_heads, capacity, head_dim, dtype=dtype, device=device)
        self.values = torch.empty(kv_heads, capacity, head_dim, dtype=dtype, device=device)

    @property
    def capacity(self) -> int:
        return self.keys.shape[1]

    @cached_property
    def unit_bytes(self) -> int:
        """Of one token's units over all KV heads."""
        return 2 * self.keys.shape[0] * self.keys.shape[2] * self.keys.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes reserved for keys and values."""
        return self.keys.nbytes + self.values.nbytes

    @cached_property
    def place(self) -> tuple[int, int, int, int]:
        """The addresses of keys and values, and the bytes from one KV head and from one unit to the next."""
        keys = self.keys
        return keys.data_ptr(), self.values.data_ptr(), keys.stride(0) * keys.itemsize, keys.stride(1) * keys.itemsize

    def run(self, start: int, stop: int) -> Dense:
        return Dense(self.keys[:, start:stop], self.values[:, start:stop])


AnySlab = Slab | SettledSlab | RaggedSlab


def _nbytes(slab: AnySlab, start: int, stop: int) -> int:
    """Bytes of the units in some slots."""
    return slab.nbytes_of(start, stop) if isinstance(slab, RaggedSlab) else (stop - start) * slab.unit_bytes


class Memory:
    """The slots of one layer of one sequence: settled ones that nobody writes any more, then those of its own slab.

    Settled are those that forks share, those in the form in which they stay, and those of which KV heads hold different
    numbers. own: the slab behind settled slots;
    offset: how many these are. make: capacity -> Slab. open: () -> an empty slab of the form in which units are held
    that stay; None: they stay as they are. shares: whether forks share at all.
    """

    def __init__(
        self,
        make: Callable[[int], Slab],
        capacity: int,
        open: Callable[[], SettledSlab] | None = None,
        *,
        shares: bool = True,
    ) -> None:
        self._make, self._open, self._shares = make, open, shares
        self._settled: list[tuple[AnySlab, int]] = []  # and how many slots of each, from its first on
        self._growing: SettledSlab | None = None  # the last of them, if it is no fork's
        self.own = make(capacity)
        self.offset = 0

    @property
    def capacity(self) -> int:
        return self.offset + self.own.capacity

    @property
    def nbytes(self) -> int:
        """Bytes reserved, also of what is shared."""
        return sum(slab.nbytes for slab in self.slabs)

    @property
    def slabs(self) -> "list[AnySlab]":
        """All of them, settled slots first."""
        return [*(slab for slab, _ in self._settled), self.own]

    @property
    def settled_nbytes(self) -> int:
        """Bytes of the settled units, also of those that are shared or have been evicted."""
        return sum(_nbytes(slab, 0, slots) for slab, slots in self._settled)

    @property
    def whole_nbytes(self) -> dict[int, int]:
        """By the id of every settled slab, the bytes of all its units: also of those that others alone have in it."""
        return {
            id(slab): slab.nbytes if isinstance(slab, RaggedSlab) else slab.units * slab.unit_bytes
            for slab, _ in self._settled
        }

    @property
    def measures(self) -> tuple[tuple[int, int], ...]:
        """Slots of all slabs, and how many of each are settled."""
        return *((slab.capacity, slots) for slab, slots in self._settled), (self.own.capacity, 0)

    @property
    def addressed(self) -> bool:
        """Whether kernels are told where all units lie."""
        return all(slab.addressed for slab, _ in self._settled)

    def pieces(self, start: int, stop: int) -> list[tuple[AnySlab, int, int]]:
        """Where the slots `[start, stop)` lie: slabs, and in each the first slot and the one behind the last."""
        found: list[tuple[AnySlab, int, int]] = []
        first = 0
        for slab, slots in self._settled:
            if first < stop and start < first + slots:
                found.append((slab, max(start - first, 0), min(stop - first, slots)))
            first += slots
        if stop > self.offset or not found:
            found.append((self.own, max(start, self.offset) - self.offset, max(stop, self.offset) - self.offset))
        return found

    def nbytes_of(self, start: int, stop: int) -> int:
        """Bytes of the units in slots `[start, stop)`."""
        return sum(_nbytes(*piece) for piece in self.pieces(start, stop))

    def runs(self, start: int, stop: int) -> list[Run]:
        """The units in slots `[start, stop)`, as they lie in memory, one run after the other."""
        pieces = self.pieces(start, stop)
        if self.own.files is not None:  # together, before any takes the place of another
            self.own.files.fetch({slab for slab, *_ in pieces})
        return [slab.run(first, last) for slab, first, last in pieces]

    def read(self, start: int, stop: int) -> Units:
        """The same as one: a view, or where they lie in several slabs or in another form a copy."""
        return joined(self.runs(start, stop))

    def write(self, start: int, keys: Tensor, values: Tensor) -> None:
        """Put units into slots from `start` on, none of which is settled."""
        place = self.own.run(start - self.offset, start - self.offset + keys.shape[1])
        place.keys.copy_(keys)
        place.values.copy_(values)

    def grow(self, capacity: int, stop: int) -> None:
        """Make room for `capacity` own slots; those up to `stop` move."""
        target, used = self._make(capacity), stop - self.offset
        keys, values = target.run(0, used)
        keys[:], values[:] = self.own.run(0, used)
        self.own = target

    def settle(self, slab: Slab) -> None:
        """From now on all slots are those of `slab`, into which what lives has been moved."""
        self._settled, self._growing, self.offset, self.own = [], None, 0, slab

    def settle_ragged(self, slab: RaggedSlab, room: int) -> None:
        """From now on the first slots are those of `slab`, where all lives; behind it there is room for others."""
        self.settle(self._make(room))
        self._settled, self.offset = [(slab, slab.capacity)], slab.capacity

    def release(self) -> None:
        """Give all slabs back, but for what forks share."""
        self.settle(self._make(0))

    def quantize(self, places: Tensor, stop: int, room: int) -> None:
        """Hold the first own units, whole groups that are rotated at `places`, [1 or kv_heads, units], as `open` has it
        from now on; the others, up to slot `stop`, come to lie in a slab with `room` slots more. What was read before
        stays as it is."""
        count = places.shape[1]
        assert self._open is not None
        if self._growing is None:
            self._growing = self._open()
            self._settled.append((self._growing, 0))
        self._growing = self._growing.append(*self.own.run(0, count), places)
        self._settled[-1] = (self._growing, self._growing.units)
        left = self.own.run(count, stop - self.offset)
        self.own = self._make(left.units + room)
        self.offset += count
        self.write(self.offset, *left)

    def close(self, start: int, stop: int, end: int) -> None:
        """Move own units in slots `[stop, end)` to slots from `start` on; what was read before stays as it is."""
        slab, base = self._make(self.own.capacity), self.offset
        for new, old in ((slab.keys, self.own.keys), (slab.values, self.own.values)):
            new[:, : start - base] = old[:, : start - base]
            new[:, start - base : start - base + end - stop] = old[:, stop - base : end - base]
        self.own = slab

    def discard(self, start: int, stop: int) -> tuple[int, int]:
        """Give back what holds the evicted units of slots `[start, stop)`, as far as it can be: whole groups of what
        is quantised. What forks share stays theirs, and what is left of it here is a copy. Returns the first slot that
        is gone, and how many are: later slots move up."""
        where, gone, base = start, 0, 0
        kept: list[tuple[AnySlab, int]] = []
        for slab, slots in self._settled:
            here, base = base, base + slots
            if isinstance(slab, (Slab, RaggedSlab)):  # no codes
                kept.append((slab, slots))
                continue
            first = max(0, -(-(start - here) // slab.group) * slab.group)
            last = min(stop - here, slots) // slab.group * slab.group
            if last <= first or (gone and here + first > where + gone):
                kept.append((slab, slots))
                continue
            where, gone = where if gone else here + first, gone + last - first
            left = None if last - first == slots else slab.without(first, last)
            self._growing = left if slab is self._growing else self._growing
            kept += [] if left is None else [(left, slots - (last - first))]
        self._settled, self.offset = kept, self.offset - gone
        return where, gone

    def fork(self, head: int, start: int, stop: int) -> "Memory":
        """The same units once more, in shared memory but for a few, or all copied: those of slots `[0, head)` and
        `[start, stop)`, which live."""
        if self._shares and self._open is None and stop - self.offset > COPIED:  # else these are yet to be quantised
            self.own.units = stop - self.offset
            self._settled.append((self.own, self.own.units))
            self.offset, self.own = stop, self._make(0)
        twin = Memory(self._make, self.own.capacity, self._open, shares=self._shares)
        twin._settled, twin.offset = list(self._settled), self.offset
        if self._growing is not None and self._growing.remade:
            twin._growing = self._growing
        elif self._shares:
            self._growing = None
        elif self._growing is not None:
            twin._growing = self._growing.without(0, 0)
            twin._settled[-1] = (twin._growing, twin._growing.units)
        for first, last in ((0, head), (start, stop)):
            first = max(first, self.offset)
            twin.write(first, *self.own.run(first - self.offset, max(first, last) - self.offset))
        return twin

    def cut(self, stop: int) -> None:
        """Give up the slots from `stop` on."""
        first, kept = 0, []
        for slab, slots in self._settled:
            if first < stop:
                kept.append((slab, min(slots, stop - first)))
            first += slots
        if stop < self.offset:
            self.own, self._growing = self._make(0), None
        self._settled, self.offset = kept, min(self.offset, stop)
