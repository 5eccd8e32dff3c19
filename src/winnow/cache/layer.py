"""The units of one sequence in one layer: head-major slabs, positions, and in-place compaction.

Live slots are two runs, `[0, head)` and `[start, stop)`, both in ascending order of position. The second run may slide
to the right inside the slab: evicting the oldest of its units is a change of `start`, and the run moves back to the
left only when the slab is full, so a policy that keeps a recent window pays one move of the window per
`capacity - window` tokens. Slots outside the two runs hold nothing that is ever read.

Where KV heads keep different numbers of units, these lie one head's behind another's (`ragged.py`), and the slab holds
what has come since. Slots are counted on over both; a head has none of its units in the first ones.
"""

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from winnow.cache.memory import Memory, Slab
from winnow.cache.ragged import Ragged, RaggedSlab, gathered
from winnow.cache.run import Units, picked
from winnow.cache.settled import SettledSlab
from winnow.cache.sums import Sums
from winnow.kernels.pack import move

GROWTH = 1.25  # the factor by which a full slab grows
LEAST = 64  # slots of a slab behind shared ones


class Reserved(NamedTuple):
    """What a cache was before slots for some rows were reserved."""

    rows: int
    first: int | None
    gapless: bool
    next: int | None
    peak_nbytes: int
    high: int
    own_high: int


class LayerCache:
    """Units of one sequence in one layer; knows no policy.

    make: capacity -> Slab, from the plan's store policy. limit: the most units there will ever be, where that is known;
    the slab never grows past it. quantized: an empty slab of the form in which `quantize` holds units. scored: whether
    units have scores. compact: whether the rope position of a unit is its place among the live ones; such keys come
    unrotated. shares: whether forks share memory.

    positions: [capacity], or [kv_heads, capacity] once heads have kept different tokens. scores: [kv_heads, capacity]
    float32, what a policy has noted of each unit, or None. ragged: once heads have kept different numbers of units,
    what is known of these, positions and scores being those of the slots behind them. rotated: whether keys are held as
    they are attended to.
    appended, dropped: units per KV head that ever came, and that left as the oldest. near: of how many of the first
    slots `turn` has changed the keys.
    """

    def __init__(
        self,
        make: Callable[[int], Slab],
        capacity: int,
        limit: int | None = None,
        *,
        quantized: Callable[[], SettledSlab] | None = None,
        scored: bool = False,
        compact: bool = False,
        shares: bool = True,
    ) -> None:
        self._make = make
        self._limit = limit
        self._quantizes = quantized is not None
        self.memory = Memory(make, capacity, quantized, shares=shares)
        self.unit_bytes = self.slab.unit_bytes  # of one token's units over all KV heads, as the model makes them
        kv_heads, device = self.slab.keys.shape[0], self.slab.keys.device
        self.positions = torch.empty(capacity, dtype=torch.int64, device=device)
        self.scores = torch.zeros(kv_heads, capacity, dtype=torch.float32, device=device) if scored else None
        self.ragged: Ragged | None = None
        self.compact = compact
        self.rotated = not compact
        self.head = 0
        self.start = 0
        self.stop = 0
        self.peak_nbytes = 0  # of the most units ever live at once
        self.high = 0  # the most of them since memory was last given back
        self._own_high = 0  # the same of those in memory that is not shared
        self.appended = 0
        self.dropped = 0
        self.near = 0
        self.first: int | None = None  # the position of the first unit that ever came
        self.gapless = True  # behind the head, positions rise by one from slot to slot
        self._next: int | None = None  # the position that keeps it so

    @property
    def length(self) -> int:
        """Live units per KV head, of that which has most."""
        return self.head + self.stop - self.start

    @property
    def kv_heads(self) -> int:
        return len(self.slab.keys)

    @property
    def begins(self) -> list[tuple[slice, int]]:
        """KV heads, and the first slot in which they have a unit: all of them at once where they have as many."""
        if self.ragged is None:
            return [(slice(None), 0)]
        return [(slice(head, head + 1), missing) for head, missing in enumerate(self.ragged.slab.missing)]

    @property
    def units(self) -> int:
        """Live units over all KV heads."""
        lacking = 0 if self.ragged is None else sum(self.ragged.slab.missing)
        return self.length * self.kv_heads - lacking

    @property
    def standing(self) -> tuple[object, ...]:
        """Equal for caches of one sequence whose units stand in the same slots of memory of the same measures, and
        come to stand alike in the future."""
        lengths = None if self.ragged is None else self.ragged.slab.lengths
        return self.head, self.start, self.stop, self.gapless, self.first, self.compact, self.memory.measures, lengths

    @property
    def lying(self) -> tuple[object, ...]:
        """The same but for how many units there are, in how much memory."""
        slabs = self.memory.slabs
        if not all(isinstance(slab, (Slab, RaggedSlab)) for slab in slabs):
            return self.standing
        return self.head, self.start, self.gapless, self.first, self.compact, *map(type, slabs)

    @property
    def slab(self) -> Slab:
        """Where units are written."""
        return self.memory.own

    @property
    def nbytes(self) -> int:
        """Bytes of the live units."""
        if not self.memory.offset:
            return self.length * self.unit_bytes
        return self.memory.nbytes_of(0, self.head) + self.memory.nbytes_of(self.start, self.stop)

    @property
    def held_nbytes(self) -> int:
        """Bytes of memory that units have filled and that has not been given back: of the most live at once since.

        Memory that forks share counts for each of them.
        """
        return self._own_high * self.unit_bytes + self.memory.settled_nbytes

    @property
    def reached_nbytes(self) -> dict[int, int]:
        """By the id of every piece of memory that is there as long as this cache is, the bytes of all units in it."""
        return {**self.memory.whole_nbytes, id(self.slab): self._own_high * self.unit_bytes}

    @property
    def allocated_nbytes(self) -> int:
        """Bytes reserved for units."""
        return self.memory.nbytes

    @property
    def held_beside_nbytes(self) -> int:
        """The same of their scores, and of their positions where KV heads hold different ones."""
        per_head = [self.scores, self.positions if self.positions.dim() == 2 else None]
        each_slot = sum(each.shape[0] * each.itemsize for each in per_head if each is not None)
        return (self.high - self._base) * each_slot + (0 if self.ragged is None else self.ragged.nbytes)

    @property
    def _base(self) -> int:
        """The slot from which on `positions` and `scores` count."""
        return 0 if self.ragged is None else self.ragged.slots

    def append(
        self,
        keys: Tensor,
        values: Tensor,
        positions: Tensor,
        first: int | None = None,
        scores: Tensor | None = None,
    ) -> None:
        """Add units at the end. keys, values: [kv_heads, rows, head_dim]; positions: [rows], ascending, or
        [kv_heads, rows] where heads hold different ones.

        first: the first position, where the others follow it one by one; None: they may have gaps. scores:
        [kv_heads, rows]; None: 0.
        """
        rows = keys.shape[1]
        if self.first is None and rows:
            self.first = int(positions[0]) if first is None else first
        self._extend(rows, positions, first)
        start = self.stop - rows  # what was there may have moved
        self.memory.write(start, keys, values)
        if self.scores is not None and scores is not None:
            self.scores[:, start - self._base : self.stop - self._base] = scores

    def reserve(self, positions: np.ndarray | int, first: int | None = None) -> "Reserved":
        """The same for units that whoever calls is about to write, in the last slots; what `give_back` takes.

        positions: of one unit, or [rows].
        """
        rows, first = (1, positions) if isinstance(positions, int) else (len(positions), first)
        before = Reserved(rows, self.first, self.gapless, self._next, self.peak_nbytes, self.high, self._own_high)
        if self.first is None:
            self.first = int(positions[0]) if isinstance(positions, np.ndarray) else positions
        self._extend(rows, positions, first)
        return before

    def give_back(self, before: "Reserved") -> None:
        """Undo `reserve`, which came last."""
        self.stop -= before.rows
        self.appended -= before.rows
        _, self.first, self.gapless, self._next, self.peak_nbytes, self.high, self._own_high = before

    def _extend(self, rows: int, positions: Tensor | np.ndarray | int, first: int | None) -> None:
        """Take slots for new units."""
        self.gapless = self.gapless and first is not None and self._next in (None, first)
        self._next = None if first is None else first + rows
        self.make_room(rows)
        start = self.stop - self._base
        slots = slice(start, start + rows)
        if isinstance(positions, Tensor):
            self.positions[..., slots] = positions
        else:  # few, and without a call into torch, which would take as long as all the rest
            self.positions.numpy()[..., slots] = positions
        if self.scores is not None:
            self.scores[:, slots] = 0
        self.stop += rows
        self.appended += rows
        self._count()

    def make_room(self, rows: int) -> None:
        """Take memory for so many more units, where there is none."""
        if self.stop + rows > self.memory.capacity:
            self._make_room(rows)

    def drop(self, count: int, after: int = 0) -> None:
        """Evict the `count` oldest units but the first `after`, which stay at the front for good."""
        if not 0 <= count <= self.length - after:
            raise ValueError(f"cannot drop {count} of {self.length} units after the first {after}")
        if self.start == self.head:
            self.head = self.start = after
        if self.head != after:
            raise ValueError(f"the first {self.head} units stay, not {after}")
        self.start += count
        self.dropped += count

    def retract(self, count: int) -> None:
        """Drop the `count` units appended last."""
        if not 0 <= count <= self.stop - self.start:
            raise ValueError(f"cannot retract {count} of {self.stop - self.start} units")
        self.stop -= count
        self.appended -= count
        self._next = None
        self.gapless = self.gapless and not self.length

    def take_back(self, count: int) -> None:
        """Drop the `count` units appended last, at whose positions others will come; their memory stays filled."""
        self.stop -= count
        self.appended -= count
        self._next = None

    def retain(self, index: Tensor | Sequence[Tensor], room: int = 0) -> None:
        """Keep only the live units at `index`, ascending: [units], or [kv_heads, units] if heads differ, or [units] for
        each KV head if they differ in how many.

        In place, so that nothing the size of the cache is allocated; a slab that is left more than
        half empty, `room` units more included, is replaced by one that fits them all. Where heads differ in how many,
        units move, head by head, into memory that has as many.
        """
        if not isinstance(index, Tensor):
            self._retain_ragged(index, room)
            return
        kept = index.shape[-1]
        kv_heads, shared = self.slab.keys.shape[0], self.memory.offset > 0
        gap = self.start - self.head
        slots = index if not gap else torch.where(index < self.head, index, index + gap)
        per_head = slots.expand(kv_heads, kept)
        wanted = kept + room if self._limit is None else max(kept, min(kept + room, self._limit))
        target = self.slab if 2 * wanted >= self.slab.capacity and not shared else self._make(max(wanted, 1))
        if target is not self.slab:
            self.high = self._own_high = kept
        for old, new in zip(self.memory.read(0, self.stop), target.run(0, kept), strict=True):
            move(old, per_head, new)
        positions = self.positions.expand(*index.shape[:-1], self.positions.shape[-1])
        positions = positions.gather(-1, slots.expand(*positions.shape[:-1], kept))
        self.positions = positions.new_empty(*positions.shape[:-1], target.capacity)
        self.positions[..., :kept] = positions
        if self.scores is not None:
            scores = self.scores.gather(1, per_head)
            self.scores = scores.new_zeros(kv_heads, target.capacity)
            self.scores[:, :kept] = scores
        self.memory.settle(target)
        self.head, self.start, self.stop = 0, 0, kept
        self.gapless = False

    def merge(self, sums: Sums, room: int = 0) -> None:
        """Keep the live units at `sums.kept` and, behind them, sums of others; no unit has left by itself yet.

        room: as of `retain`.
        """
        keys, values = sums.of(self.pick(sums.parts))
        positions = self.live_positions().expand(self.kv_heads, -1).gather(1, sums.seeds)
        self.retain(sums.kept, room + sums.number)
        self.append(keys, values, positions, scores=self._of_units().new_full(positions.shape, sums.score))
        self.appended -= sums.number  # no token has come

    def _retain_ragged(self, index: Sequence[Tensor], room: int) -> None:
        if self.start:
            raise ValueError("units that have left by themselves leave no slots to heads that differ in how many")
        slab = gathered(self.memory.runs(0, self.stop), index, self.slab.keys)
        positions = self.live_positions().expand(slab.kv_heads, -1)
        scores = None if self.scores is None else self.live_scores()
        known = Ragged(slab, _of_each(positions, index), None if scores is None else _of_each(scores, index))
        if self._limit is not None:
            room = max(0, min(room, self._limit - -(-slab.count(0, slab.capacity) // slab.kv_heads)))
        self.memory.settle_ragged(slab, room)
        self.positions = self.positions.new_empty(room)
        self.scores = None if scores is None else scores.new_zeros(slab.kv_heads, room)
        self.ragged, self.stop, self.gapless = known, slab.capacity, False
        self.high, self._own_high = slab.capacity, 0

    def positions_between(self, start: int, stop: int) -> Tensor:
        """Positions [..., stop - start] of the units in some slots; `NOBODY` where a KV head has none."""
        if self.ragged is None:
            return self.positions[..., start:stop]
        since = self.positions[: self.stop - self.ragged.slots].expand(self.kv_heads, -1)
        return torch.cat((self.ragged.positions_of_slots(), since), 1)[:, start:stop]

    def live_positions(self) -> Tensor:
        """Positions `[..., length]` of the live units, in the order of their slots; see `positions_between`."""
        if self.ragged is not None:
            return self.positions_between(0, self.stop)
        recent = self.positions[..., self.start : self.stop]
        return torch.cat((self.positions[..., : self.head], recent), -1) if self.head else recent

    def live_scores(self) -> Tensor:
        """Scores [kv_heads, length] of the live units, in the order of their slots, 0 where a head has none; a copy."""
        scores = self._of_units()
        if self.ragged is not None:
            return torch.cat((self.ragged.scores_of_slots(), scores[:, : self.stop - self.ragged.slots]), 1)
        return torch.cat((scores[:, : self.head], scores[:, self.start : self.stop]), 1)

    def add_scores(self, votes: Tensor) -> None:
        """Add `votes`, [kv_heads or 1, length], to the scores of the live units."""
        scores = self._of_units()
        if self.ragged is not None:
            self.ragged.add_scores(votes[:, : self.ragged.slots])
            scores[:, : self.stop - self.ragged.slots] += votes[:, self.ragged.slots :]
            return
        scores[:, : self.head] += votes[:, : self.head]
        scores[:, self.start : self.stop] += votes[:, self.head :]

    def raise_scores(self, votes: Tensor, first: int) -> None:
        """Raise the scores of the live units from number `first` on to `votes`, [kv_heads, units], where these are
        higher; of units that lie one behind another."""
        scores = self._of_units()[:, self.start + first : self.start + first + votes.shape[1]]
        torch.maximum(scores, votes, out=scores)

    def set_scores(self, scores: Tensor) -> None:
        """Set the scores of the units appended last: [units], the same in all heads, or [kv_heads, units]."""
        stop, count = self.stop - self._base, scores.shape[-1]
        if (before := count - stop) > 0 and self.ragged is not None:
            self.ragged.set_scores(scores[..., :before])
            scores, count = scores[..., before:], stop
        self._of_units()[:, stop - count : stop] = scores

    def scale_scores(self, factor: float) -> None:
        """Multiply the scores of all units."""
        self._of_units().mul_(factor)
        if self.ragged is not None and self.ragged.scores is not None:
            self.ragged.scores.mul_(factor)

    def _of_units(self) -> Tensor:
        if self.scores is None:
            raise ValueError("the units of this cache have no scores")
        return self.scores

    def live(self) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values `[kv_heads, length, head_dim]` and positions `[..., length]` of the live units; a copy."""
        slots = [torch.arange(0, self.head), torch.arange(self.start, self.stop)]
        index = torch.cat(slots).to(self.positions.device)
        return *self.gather(index), self.positions[..., index]

    def gather(self, index: Tensor) -> Units:
        """Keys, values [kv_heads, units, head_dim] in the slots `index`, [units]; a copy."""
        # From whole slabs: torch gathers several times as fast from contiguous tensors as from slices of them.
        keys, values = self.memory.read(0, self.stop) if self.memory.offset else self.slab.run(0, self.slab.capacity)
        return keys.index_select(1, index), values.index_select(1, index)

    def keys_between(self, start: int, stop: int) -> Tensor:
        """Keys [kv_heads, units, head_dim] of the second run's units from one on: a view where they lie in one slab."""
        runs = self.memory.runs(self.start + start, self.start + stop)
        return runs[0].keys if len(runs) == 1 else torch.cat([run.keys for run in runs], 1)

    def pick(self, index: Tensor) -> Units:
        """Keys, values [kv_heads, units, head_dim] of the live units at `index`, [kv_heads, units], where none has left
        by itself; a copy."""
        return picked(tuple(self.memory.runs(self.start, self.stop)), index)

    def change_keys(self, change: Callable[[Tensor, int], Tensor]) -> None:
        """Replace the keys of the second run by others: of those from so many behind its first on, [heads, units,
        head_dim]."""
        if self.ragged is not None:
            self._change_ragged(change)
            return
        if self.memory.offset:
            self._move(self._make(self.memory.capacity))
        keys = self.slab.run(self.start, self.stop).keys
        keys.copy_(change(keys, 0))

    def turn(self, stop: int, change: Callable[[Tensor, int], Tensor]) -> None:
        """Replace the keys in the slots up to `stop` that have not been yet, in memory that no fork reads: of those
        from a slot on, [kv_heads, units, head_dim]."""
        if stop > self.near:
            keys = self.slab.run(self.near, stop).keys
            keys.copy_(change(keys, self.near))
            self.near = stop

    def _change_ragged(self, change: Callable[[Tensor, int], Tensor]) -> None:
        """The same where heads differ in how many: in memory of its own, which forks do not read."""
        assert self.ragged is not None
        slots = torch.arange(self.stop, device=self.positions.device)
        self._retain_ragged([slots[missing:] for missing in self.ragged.slab.missing], self.slab.capacity)
        slab = self.ragged.slab
        for head, missing in enumerate(slab.missing):
            keys = slab.keys[slab.units_of(head)]
            keys.copy_(change(keys[None], missing)[0])

    def quantize(self, residual: int, group: int, room: int) -> None:
        """Hold all but at least the `residual` newest units in the form in which they stay, whole groups of the oldest;
        what was so and has been evicted is given back. room: slots to keep for units that are sure to come."""
        if self._close_gap(at_least=1):  # no group is to have a unit that is gone
            self._begin()
        count = (self.stop - self.memory.offset - residual) // group * group
        if count <= 0:
            return
        self.memory.quantize(self._places(self.memory.offset, count), self.stop, room)
        if self.start > self.head:
            self._close(*self.memory.discard(self.head, self.start))
        self._begin()

    def _close_gap(self, at_least: int) -> bool:
        """Close the slots of own memory that units have left by themselves, where these are so many; whether it has."""
        first = max(self.head, self.memory.offset)
        gone = self.start - first
        if gone < at_least:
            return False
        self.memory.close(first, self.start, self.stop)
        self._close(first, gone)
        return True

    def _places(self, first: int, count: int) -> Tensor:
        """At which rope positions the keys of some slots are rotated, [1 or kv_heads, count]."""
        if self.compact:
            return torch.arange(first, first + count, device=self.positions.device)[None]
        positions = self.positions[..., first : first + count]
        return positions if positions.dim() == 2 else positions[None]

    def _begin(self) -> None:
        """Units lie in memory that no others have filled."""
        self._widen()
        self.high, self._own_high = self.length, 0
        self._count()

    def _close(self, first: int, gone: int) -> None:
        """The slots from `first` on, `gone` of them, are no more: those behind them are counted from there."""
        if gone:
            self.positions = torch.cat((self.positions[..., :first], self.positions[..., first + gone :]), -1)
            if self.scores is not None:
                self.scores = torch.cat((self.scores[:, :first], self.scores[:, first + gone :]), 1)
            self.start, self.stop = self.start - gone, self.stop - gone

    def fork(self) -> "LayerCache":
        """An independent copy: the units so far lie in memory that both share and neither writes any more, or twice."""
        twin, own = copy.copy(self), self.slab
        twin.memory = self.memory.fork(self.head, self.start, self.stop)
        twin.positions = self.positions.clone()
        twin.scores = None if self.scores is None else self.scores.clone()
        twin.ragged = None if self.ragged is None else self.ragged.fork()
        for each in (self, twin):
            if each.slab is not own:  # else what evicted units have filled is still there
                each.high, each._own_high = self.length, 0
                each._count()
        return twin

    def cut(self, stop: int) -> None:
        """Give up the units in slots from `stop` on, all of the second run: they never came."""
        self.appended -= self.stop - stop
        self.stop, self._next = stop, None
        self.memory.cut(stop)
        self.high, self._own_high = self.length, 0
        self._count()

    def go_on(self, limit: int | None, capacity: int, *, alone: bool) -> None:
        """Hold the first units of another text from now on. limit: as above; capacity: units to have room for. alone:
        with memory of its own, so that what it has shared can be given back."""
        self._limit, self.peak_nbytes = limit, self.nbytes
        if alone:
            self._move(self._make(max(capacity, self.length, 1)))
        elif (room := capacity - self.length) > 0:
            self.make_room(room)

    def release(self) -> None:
        """Give the memory of all units back, whoever still holds the cache; it is of no more use."""
        self.memory.release()

    def _count(self) -> None:
        """Note how many units live now."""
        length = self.length
        self.peak_nbytes, self.high = max(self.peak_nbytes, self.nbytes), max(self.high, length)
        self._own_high = max(self._own_high, length - self._live_settled)

    @property
    def _live_settled(self) -> int:
        """Live units in memory that nobody writes any more."""
        return min(self.head, self.memory.offset) + max(0, self.memory.offset - self.start)

    def _make_room(self, rows: int) -> None:
        """Slide the second run to the left where that buys enough room, or move everything to a larger slab.

        Behind shared slots the slab alone grows, as long as most of these live.
        """
        worthwhile = (self.stop - self.start) // 8  # units that leave may be so few: all behind them have to move
        if self._quantizes and self._close_gap(worthwhile + 1) and self.stop + rows <= self.memory.capacity:
            self._widen()
            return
        needed, offset = self.length + rows, self.memory.offset
        own = max(self.stop - offset + rows, int(self.slab.capacity * GROWTH), LEAST)
        if self.ragged is not None:
            self._grow_behind(own, rows)
            return
        limited = self._limit is not None and offset + own > self._limit and not self._quantizes
        if offset and (self._quantizes or 2 * self._live_settled >= offset) and not limited:
            self.memory.grow(own, self.stop)
            self._widen()
            return
        capacity = self.slab.capacity
        if not offset and needed <= capacity and (self.start - self.head >= worthwhile or capacity == self._limit):
            self._move(self.slab)
            return
        grown = max(needed, int(capacity * GROWTH))
        self._move(self._make(grown if self._limit is None else max(needed, min(grown, self._limit))))

    def _grow_behind(self, own: int, rows: int) -> None:
        """Grow the slab behind units of which heads hold different numbers."""
        assert self.ragged is not None
        if self._limit is not None:
            before = self.units // self.kv_heads - (self.stop - self.memory.offset)
            own = max(self.stop - self.memory.offset + rows, min(own, self._limit - before))
        self.memory.grow(own, self.stop)
        self._widen()

    def _widen(self) -> None:
        """Give positions and scores as many slots as there is memory for."""
        positions, capacity, used = self.positions, self.memory.capacity - self._base, self.stop - self._base
        self.positions = positions.new_empty(*positions.shape[:-1], capacity)
        self.positions[..., :used] = positions[..., :used]
        if self.scores is not None:
            scores, self.scores = self.scores, self.scores.new_zeros(len(self.scores), capacity)
            self.scores[:, :used] = scores[:, :used]

    def _move(self, target: Slab) -> None:
        """Bring the live slots to the front of `target`, which may be the slab they are in; one head at a time."""
        end = self.head + self.stop - self.start
        first, second = self.memory.read(0, self.head), self.memory.read(self.start, self.stop)
        for sink, recent, new in zip(first, second, target.run(0, end), strict=True):
            for head in range(new.shape[0]):
                if target is not self.slab:
                    new[head, : self.head] = sink[head]
                new[head, self.head : end] = recent[head].clone()
        positions = self.positions
        if target is not self.slab:
            positions = self.positions.new_empty(*self.positions.shape[:-1], target.capacity)
            positions[..., : self.head] = self.positions[..., : self.head]
        positions[..., self.head : end] = self.positions[..., self.start : self.stop].clone()
        self.positions = positions
        if self.scores is not None:
            live = self.live_scores()
            if target is not self.slab:
                self.scores = live.new_zeros(len(live), target.capacity)
            self.scores[:, :end] = live
        if self.memory.offset:
            self.high = self._own_high = self.length
        self.memory.settle(target)
        self.start, self.stop = self.head, end


def _of_each(of_units: Tensor, index: Sequence[Tensor]) -> Tensor:
    """What is known of units, [kv_heads, slots], of those in the slots of `index`, one KV head's after another's."""
    return torch.cat([mine[slots] for mine, slots in zip(of_units, index, strict=True)])
