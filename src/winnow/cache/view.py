"""The units that rows attend to in one layer."""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise

from torch import Tensor

from winnow.cache.run import Dense, Run, Units, joined, picked

COPIED = 1024  # units that are made dense at a time
NOBODY = 2**62  # in place of the position of a unit that no row sees, or that a KV head does not have


@dataclass(frozen=True)
class View:
    """Units that rows attend to: runs of keys and values [kv_heads, units, head_dim], positions [..., units], `NOBODY`
    where a KV head has no unit.

    order: what the rows' positions are compared with: the units' positions, or one that every row sees. past, window,
    query_limit: as in `Span`. place: of the first unit of the runs among the live units of the cache, the others
    following it one by one; None: these are copies, with keys that are rotated already where others are yet to be.
    gathered: units between them were left out. index: [kv_heads, units], which units of the runs they are, ascending;
    None: all.
    """

    runs: tuple[Run, ...]
    positions: Tensor
    order: Tensor
    past: int | None
    window: int | None = None
    query_limit: int | None = None
    place: int | None = None
    gathered: bool = False
    index: Tensor | None = None

    @property
    def units(self) -> int:
        """Per KV head."""
        return self.positions.shape[-1]

    @property
    def total(self) -> int:
        """Over all KV heads, which may lack some."""
        lacking = int((self.positions == NOBODY).sum()) if self.positions.dim() == 2 else 0
        return self.units * self.kv_heads - lacking

    @property
    def kv_heads(self) -> int:
        return self.runs[0].kv_heads

    @property
    def keys(self) -> Tensor:
        """[kv_heads, units, head_dim]; a copy where there are several runs, or where units lie apart."""
        return self._joined[0]

    @property
    def values(self) -> Tensor:
        return self._joined[1]

    @cached_property
    def _joined(self) -> Units:
        return self.lying if self.index is None else picked(self.runs, self.index)

    @property
    def lying(self) -> Units:
        """Keys and values that `index` counts; a copy where there are several runs."""
        return joined(self.runs)

    @property
    def pieces(self) -> "list[View]":
        """The same units, in views of one run each; of what is held in another form than it is read in, a few."""
        if len(self.runs) == 1 and isinstance(self.runs[0], Dense):
            return [self]
        if self.index is not None:
            return [replace(self, runs=(Dense(*self._joined),), index=None, place=None)]
        starts = [0, *accumulate(run.units for run in self.runs)]
        return [
            self.between(start, min(start + step, stop))
            for run, (first, stop) in zip(self.runs, pairwise(starts), strict=True)
            for step in [run.units if isinstance(run, Dense) else COPIED]
            for start in range(first, stop, step)
        ]

    def with_keys(self, keys: Tensor) -> "View":
        """The same units with other keys, as rows attend to them."""
        return replace(self, runs=(Dense(keys, self.values),), index=None, place=None)

    def chosen(self, index: Tensor) -> "View":
        """The units at `index`, [kv_heads, units], ascending, where they lie; of a view for one row that sees them."""
        positions = self.positions.expand(len(index), -1).gather(1, index)
        past = index.shape[1] if self.window is None else None
        return replace(self, positions=positions, order=positions, past=past, index=index)

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
