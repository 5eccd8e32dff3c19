"""The units of one sequence in one layer: head-major slabs, positions, and in-place compaction.

Live slots are two runs, `[0, head)` and `[start, stop)`, both in ascending order of position. The second run may slide
to the right inside the slab: evicting the oldest of its units is a change of `start`, and the run moves back to the
left only when the slab is full, so a policy that keeps a recent window pays one move of the window per
`capacity - window` tokens. Slots outside the two runs hold nothing that is ever read.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor

GROWTH = 1.25  # the factor by which a full slab grows


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


class LayerCache:
    """Units of one sequence in one layer; knows no policy.

    make: capacity -> Slab, from the plan's store policy. limit: the most units there will ever be, where that is known;
    the slab never grows past it. scored, normed: whether units have scores, and whether the norms of keys are held.
    compact: whether the rope position of a unit is its place among the live ones; such keys come unrotated.

    positions: [capacity], or [kv_heads, capacity] once heads have kept different tokens. figures: [kv_heads, capacity]
    float32 each, "scores": what a policy has noted of each unit, "norms": of its key. rotated: whether keys are held as
    they are attended to. appended, dropped: units per KV head that ever came, and that left as the oldest.
    """

    def __init__(
        self,
        make: Callable[[int], Slab],
        capacity: int,
        limit: int | None = None,
        *,
        scored: bool = False,
        normed: bool = False,
        compact: bool = False,
    ) -> None:
        self._make = make
        self._limit = limit
        self.slab = make(capacity)
        kv_heads, device = self.slab.keys.shape[0], self.slab.keys.device
        self.positions = torch.empty(capacity, dtype=torch.int64, device=device)
        names = ["scores"] * scored + ["norms"] * normed
        self.figures = {name: torch.zeros(kv_heads, capacity, device=device) for name in names}
        self.compact = compact
        self.rotated = not compact
        self.head = 0
        self.start = 0
        self.stop = 0
        self.peak = 0  # the most units ever live at once
        self.high = 0  # the same since memory was last given back
        self.appended = 0
        self.dropped = 0
        self.first: int | None = None  # the position of the first unit that ever came
        self.gapless = True  # behind the head, positions rise by one from slot to slot
        self._next: int | None = None  # the position that keeps it so

    @property
    def length(self) -> int:
        """Live units per KV head."""
        return self.head + self.stop - self.start

    @property
    def unit_bytes(self) -> int:
        """Bytes of one token's units over all KV heads."""
        return self.slab.nbytes // self.slab.capacity

    @property
    def nbytes(self) -> int:
        """Bytes of the live units."""
        return self.length * self.unit_bytes

    @property
    def peak_nbytes(self) -> int:
        """Bytes of the most units ever live at once; the slab that holds them is not returned between two steps."""
        return self.peak * self.unit_bytes

    @property
    def held_nbytes(self) -> int:
        """Bytes of memory that units have filled and that has not been given back: of the most live at once since."""
        return self.high * self.unit_bytes

    @property
    def held_beside_nbytes(self) -> int:
        """The same of their figures, and of their positions where KV heads hold different ones."""
        per_head = [*self.figures.values(), *([self.positions] if self.positions.dim() == 2 else [])]
        return self.high * sum(each.shape[0] * each.itemsize for each in per_head)

    @property
    def scores(self) -> Tensor | None:
        """[kv_heads, capacity] float32, or None."""
        return self.figures.get("scores")

    @property
    def norms(self) -> Tensor | None:
        """[kv_heads, capacity] float32, or None."""
        return self.figures.get("norms")

    def append(
        self,
        keys: Tensor,
        values: Tensor,
        positions: Tensor,
        first: int | None = None,
        scores: Tensor | None = None,
    ) -> None:
        """Add units at the end. keys, values: [kv_heads, rows, head_dim]; positions: [rows], ascending.

        first: the first position, where the others follow it one by one; None: they may have gaps. scores:
        [kv_heads, rows]; None: 0.
        """
        rows = keys.shape[1]
        if self.first is None and rows:
            self.first = int(positions[0]) if first is None else first
        self.gapless = self.gapless and first is not None and self._next in (None, first)
        self._next = None if first is None else first + rows
        if self.stop + rows > self.slab.capacity:
            self._make_room(rows)
        end = self.stop + rows
        self.slab.keys[:, self.stop : end] = keys
        self.slab.values[:, self.stop : end] = values
        self.positions[..., self.stop : end] = positions
        if self.scores is not None:
            self.scores[:, self.stop : end] = 0 if scores is None else scores
        if self.norms is not None:
            torch.linalg.vector_norm(keys, dim=-1, dtype=torch.float32, out=self.norms[:, self.stop : end])
        self.stop = end
        self.appended += rows
        self.peak = max(self.peak, self.length)
        self.high = max(self.high, self.length)

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

    def retain(self, index: Tensor, room: int = 0) -> None:
        """Keep only the live units at `index`, ascending: [units], or [kv_heads, units] if heads differ.

        In place, one head at a time, so that nothing the size of the cache is allocated; a slab that is left more than
        half empty, `room` units more included, is replaced by one that fits them all.
        """
        kept = index.shape[-1]
        kv_heads = self.slab.keys.shape[0]
        slots = torch.where(index < self.head, index, index - self.head + self.start)
        per_head = slots.expand(kv_heads, kept)
        wanted = kept + room if self._limit is None else max(kept, min(kept + room, self._limit))
        target = self.slab if 2 * wanted >= self.slab.capacity else self._make(max(wanted, 1))
        if target is not self.slab:
            self.high = kept
        # What stays where it is need not be copied.
        still = (slots == torch.arange(kept, device=slots.device)).cumprod(-1).sum(-1).min()
        first = int(still) if target is self.slab else 0
        for head in range(kv_heads):
            for old, new in ((self.slab.keys, target.keys), (self.slab.values, target.values)):
                new[head, first:kept] = old[head, per_head[head, first:]]
        positions = self.positions.expand(*index.shape[:-1], self.positions.shape[-1])
        positions = positions.gather(-1, slots.expand(*positions.shape[:-1], kept))
        self.positions = positions.new_empty(*positions.shape[:-1], target.capacity)
        self.positions[..., :kept] = positions
        for name, figure in self.figures.items():
            self.figures[name] = figure.new_zeros(kv_heads, target.capacity)
            self.figures[name][:, :kept] = figure.gather(1, per_head)
        self.slab, self.head, self.start, self.stop = target, 0, 0, kept
        self.gapless = False

    def live_positions(self) -> Tensor:
        """Positions `[..., length]` of the live units, in the order of their slots."""
        recent = self.positions[..., self.start : self.stop]
        return torch.cat((self.positions[..., : self.head], recent), -1) if self.head else recent

    def live_scores(self) -> Tensor:
        """Scores [kv_heads, length] of the live units, in the order of their slots; a copy."""
        scores = self._of_units()
        return torch.cat((scores[:, : self.head], scores[:, self.start : self.stop]), 1)

    def add_scores(self, votes: Tensor) -> None:
        """Add `votes`, [kv_heads or 1, length], to the scores of the live units."""
        scores = self._of_units()
        scores[:, : self.head] += votes[:, : self.head]
        scores[:, self.start : self.stop] += votes[:, self.head :]

    def set_scores(self, scores: Tensor) -> None:
        """Set the scores of the units appended last, the same in all heads: [units]."""
        self._of_units()[:, self.stop - len(scores) : self.stop] = scores

    def scale_scores(self, factor: float) -> None:
        """Multiply the scores of all units."""
        self._of_units().mul_(factor)

    def _of_units(self) -> Tensor:
        if self.scores is None:
            raise ValueError("the units of this cache have no scores")
        return self.scores

    def live(self) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values `[kv_heads, length, head_dim]` and positions `[..., length]` of the live units; a copy."""
        slots = [torch.arange(0, self.head), torch.arange(self.start, self.stop)]
        index = torch.cat(slots).to(self.positions.device)
        return self.slab.keys[:, index], self.slab.values[:, index], self.positions[..., index]

    def fork(self) -> "LayerCache":
        """An independent copy with the same room to grow; only live slots are copied."""
        twin = copy.copy(self)
        twin.figures = dict(self.figures)
        twin.high = self.length
        twin._move(self._make(self.slab.capacity))
        return twin

    def _make_room(self, rows: int) -> None:
        """Slide the second run to the left where that buys enough room, or move everything to a larger slab."""
        needed = self.length + rows
        capacity = self.slab.capacity
        worthwhile = self.start - self.head >= (self.stop - self.start) // 8
        if needed <= capacity and (worthwhile or capacity == self._limit):
            self._move(self.slab)
            return
        grown = max(needed, int(capacity * GROWTH))
        self._move(self._make(grown if self._limit is None else max(needed, min(grown, self._limit))))

    def _move(self, target: Slab) -> None:
        """Bring the live slots to the front of `target`, which may be the slab they are in; one head at a time."""
        end = self.head + self.stop - self.start
        for old, new in ((self.slab.keys, target.keys), (self.slab.values, target.values)):
            for head in range(old.shape[0]):
                if new is not old:
                    new[head, : self.head] = old[head, : self.head]
                new[head, self.head : end] = old[head, self.start : self.stop].clone()
        positions = self.positions
        if target is not self.slab:
            positions = self.positions.new_empty(*self.positions.shape[:-1], target.capacity)
            positions[..., : self.head] = self.positions[..., : self.head]
        positions[..., self.head : end] = self.positions[..., self.start : self.stop].clone()
        self.positions = positions
        for name, figure in self.figures.items():
            live = torch.cat((figure[:, : self.head], figure[:, self.start : self.stop]), 1)
            if target is not self.slab:
                self.figures[name] = figure.new_zeros(len(figure), target.capacity)
            self.figures[name][:, :end] = live
        self.slab, self.start, self.stop = target, self.head, end
