"""The units that rows attend to in one layer."""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise

from torch import Tensor

from winnow.cache.run import Dense, Run, Units, joined

COPIED = 1024  # units that are made dense at a time
NOBODY = 2**62  # in place of the position of a unit that no row sees


@dataclass(frozen=True)
class View:
    """Units that rows attend to: runs of keys and values [kv_heads, units, head_dim], positions [..., units].

    order: what the rows' positions are compared with: the units' positions, or one that every row sees. past, window,
    query_limit: as in `Span`. place: of the first of them among the live units of the cache, the others following it
    one by one; None: these are copies, with keys that are rotated already where others are yet to be. gathered: units
    between them were left out.
    """

    runs: tuple[Run, ...]
    positions: Tensor
    order: Tensor
    past: int | None
    window: int | None = None
    query_limit: int | None = None
    place: int | None = None
    gathered: bool = False

    @property
    def units(self) -> int:
        """Per KV head."""
        return self.positions.shape[-1]

    @property
    def keys(self) -> Tensor:
        """[kv_heads, units, head_dim]; a copy where there are several runs."""
        return self._joined[0]

    @property
    def values(self) -> Tensor:
        return self._joined[1]

    @cached_property
    def _joined(self) -> Units:
        return joined(self.runs)

    @property
    def pieces(self) -> "list[View]":
        """The same units, in views of one run each; of what is held in another form than it is read in, a few."""
        if len(self.runs) == 1 and isinstance(self.runs[0], Dense):
            return [self]
        starts = [0, *accumulate(run.units for run in self.runs)]
        return [
            self.between(start, min(start + step, stop))
            for run, (first, stop) in zip(self.runs, pairwise(starts), strict=True)
            for step in [run.units if isinstance(run, Dense) else COPIED]
            for start in range(first, stop, step)
        ]

    def with_keys(self, keys: Tensor) -> "View":
        """The same units with other keys."""
        return replace(self, runs=(Dense(keys, self.values),))

    def at(self, index: Tensor) -> "View":
        """The units at `index`, [units], of a view for one row that compares positions; copies."""
        return replace(
            self,
            runs=(Dense(self.keys.index_select(1, index), self.values.index_select(1, index)),),
            positions=self.positions[..., index],
            order=self.order[..., index],
            past=None,
            gathered=True,
        )

    def between(self, start: int, stop: int) -> "View":
        """The units `[start, stop)` of a view for one row, or of one whose rows are all in them or all behind."""
        units = slice(start, stop)
        positions = self.positions[..., units]
        return View(
            self._runs_between(start, stop),
            positions,
            positions if self.order is self.positions else self.order[..., units],
            None if self.past is None else max(0, min(self.past, stop) - start),
            self.window,
            self.query_limit,
            None if self.place is None else self.place + start,
            self.gathered,
        )

    def _runs_between(self, start: int, stop: int) -> tuple[Run, ...]:
        found, first = [], 0
        for run in self.runs:
            begin, end = max(start - first, 0), max(0, min(stop - first, run.units))
            if begin < end:
                found.append(run.between(begin, end))
            first += run.units
        return tuple(found) or (self.runs[-1].between(0, 0),)
