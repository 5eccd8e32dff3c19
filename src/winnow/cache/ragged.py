"""Units of which KV heads hold different numbers: one head's behind another's, with no memory between them.

Slots are the same for all heads, so that what comes later stands in the same slot of each: the newest units of all
heads are in the last slot, and a head with fewer than the longest has nothing in the first ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from winnow.cache.run import Run, Slots, Units
from winnow.cache.view import NOBODY
from winnow.kernels.pack import packed


class RaggedSlab:
    """Units that stayed when heads kept different numbers of them; written when it is made, and never again.

    lengths, missing: per KV head, its units, and the first slots in which it has none. keys, values: [units of all
    heads, head_dim].
    """

    addressed = True

    def __init__(self, lengths: Sequence[int], like: Tensor) -> None:
        """like: of the dtype, the device and the head_dim of units."""
        self.lengths = tuple(lengths)
        self.capacity = max(self.lengths)
        self.missing = tuple(self.capacity - length for length in self.lengths)
        self._first = (0, *accumulate(self.lengths))
        # Which of all units would be in each head's slot 0.
        self.firsts = tuple(first - missing for first, missing in zip(self._first, self.missing, strict=False))
        self.keys, self.values = (like.new_empty(self._first[-1], like.shape[-1]) for _ in range(2))

    @property
    def kv_heads(self) -> int:
        return len(self.lengths)

    @property
    def unit_bytes(self) -> int:
        """Of one token's units, where all KV heads have one."""
        return 2 * self.kv_heads * self.keys.shape[1] * self.keys.itemsize

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    @property
    def place(self) -> tuple[int, int, int]:
        """The addresses of keys and values, and the bytes from one unit to the next."""
        return self.keys.data_ptr(), self.values.data_ptr(), self.keys.shape[1] * self.keys.itemsize

    def units_of(self, head: int) -> slice:
        """Which of all units are a head's."""
        return slice(self._first[head], self._first[head + 1])

    def count(self, start: int, stop: int) -> int:
        """Units over all KV heads in slots `[start, stop)`."""
        return sum(max(0, stop - max(start, missing)) for missing in self.missing)

    def nbytes_of(self, start: int, stop: int) -> int:
        """Bytes of these."""
        return self.count(start, stop) * (self.unit_bytes // self.kv_heads)

    def run(self, start: int, stop: int) -> "RaggedRun":
        return RaggedRun(self, start, stop)

    def spread(self, flat: Tensor, start: int, stop: int, nothing: float) -> Tensor:
        """What is known of all units, [units of all heads, ..], by slot, [kv_heads, stop - start, ..]; a copy."""
        out = flat.new_full((self.kv_heads, stop - start, *flat.shape[1:]), nothing)
        for head, missing in enumerate(self.missing):
            if (begin := max(start, missing)) < stop:
                first = self.firsts[head]
                out[head, begin - start :] = flat[first + begin : first + stop]
        return out


class RaggedRun(Slots[RaggedSlab]):
    """Slots of a ragged slab."""

    @property
    def keys(self) -> Tensor:
        return self.slab.spread(self.slab.keys, self.start, self.stop, 0.0)

    @property
    def values(self) -> Tensor:
        return self.slab.spread(self.slab.values, self.start, self.stop, 0.0)

    def pick(self, index: Tensor) -> Units:
        return packed(self.keys, index), packed(self.values, index)


@dataclass
class Ragged:
    """What a cache knows of the units of a ragged slab. positions: [units of all heads]; scores: the same, or None."""

    slab: RaggedSlab
    positions: Tensor
    scores: Tensor | None

    @property
    def slots(self) -> int:
        return self.slab.capacity

    @property
    def nbytes(self) -> int:
        """Bytes beside the units."""
        return self.positions.nbytes + (0 if self.scores is None else self.scores.nbytes)

    def positions_of_slots(self) -> Tensor:
        """[kv_heads, slots]; `NOBODY` where there is no unit."""
        return self.slab.spread(self.positions, 0, self.slots, NOBODY)

    def scores_of_slots(self) -> Tensor:
        """[kv_heads, slots]; 0 where there is no unit."""
        assert self.scores is not None
        return self.slab.spread(self.scores, 0, self.slots, 0.0)

    def add_scores(self, votes: Tensor) -> None:
        """votes: [kv_heads or 1, slots]."""
        assert self.scores is not None
        self.scores += self._of_units(votes)

    def set_scores(self, scores: Tensor) -> None:
        """scores: [slots] or [kv_heads, slots], of all units."""
        assert self.scores is not None
        self.scores[:] = self._of_units(scores)

    def _of_units(self, by_slot: Tensor) -> Tensor:
        """What is known by slot, [.., slots], of all units."""
        heads = by_slot.expand(self.slab.kv_heads, -1)
        return torch.cat([mine[missing:] for missing, mine in zip(self.slab.missing, heads, strict=True)])

    def fork(self) -> "Ragged":
        """The same units, which nobody writes any more, with scores of its own."""
        return Ragged(self.slab, self.positions, None if self.scores is None else self.scores.clone())


def gathered(runs: "Sequence[Run]", index: Sequence[Tensor], like: Tensor) -> RaggedSlab:
    """The units of runs that lie one after the other in the slots of `index`, of each KV head, ascending; a copy.

    One head at a time, so that nothing the size of all is made beside it. like: as of `RaggedSlab`.
    """
    slab = RaggedSlab([len(mine) for mine in index], like)
    slots = sum(run.units for run in runs)
    for head, mine in enumerate(index):
        for number, target in enumerate((slab.keys, slab.values)):
            parts = [_of_head(run, number, head) for run in runs]
            units = parts[0] if len(parts) == 1 else torch.cat(parts)
            missing = slots - len(units)
            torch.index_select(units, 0, mine - missing, out=target[slab.units_of(head)])
    return slab


def _of_head(run: Run, number: int, head: int) -> Tensor:
    """Keys (0) or values (1) of one KV head, [units, head_dim]."""
    if not isinstance(run, RaggedRun):
        return (run.keys, run.values)[number][head]
    return (run.slab.keys, run.slab.values)[number][run.slab.units_of(head)]
