"""The units that rows attend to in one layer."""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from torch import Tensor

from winnow.cache.memory import Units, joined
from winnow.kernels.pack import packed

NOBODY = 2**62  # in place of the position of a unit that no row sees


@dataclass(frozen=True)
class View:
    """Units that rows attend to: runs of keys and values [kv_heads, units, head_dim], positions [..., units].

    order: what the rows' positions are compared with: the units' positions, or one that every row sees. past, window,
    query_limit: as in `Span`. place: of the first unit of the runs among the live units of the cache, the others
    following it one by one; None: these are copies, with keys that are rotated already where others are yet to be.
    gathered: units between them were left out. index: [kv_heads, units], which units of the runs they are, ascending;
    None: all.
    """

    runs: tuple[Units, ...]
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
    def keys(self) -> Tensor:
        """[kv_heads, units, head_dim]; a copy where there are several runs, or where units lie apart."""
        return self._joined[0]

    @property
    def values(self) -> Tensor:
        return self._joined[1]

    @cached_property
    def _joined(self) -> Units:
        keys, values = self.lying
        return (keys, values) if self.index is None else (packed(keys, self.index), packed(values, self.index))

    @property
    def lying(self) -> Units:
        """Keys and values that `index` counts; a copy where there are several runs."""
        return joined(list(self.runs))

    @property
    def pieces(self) -> "list[View]":
        """The same units, in views of one run each."""
        if len(self.runs) == 1:
            return [self]
        if self.index is not None:
            return [replace(self, runs=(self.lying,))]
        ends = [*accumulate(keys.shape[1] for keys, _ in self.runs)]
        return [self.between(stop - keys.shape[1], stop) for (keys, _), stop in zip(self.runs, ends, strict=True)]

    def with_keys(self, keys: Tensor) -> "View":
        """The same units with other keys, as rows attend to them."""
        return replace(self, runs=((keys, self.values),), index=None, place=None)

    def chosen(self, index: Tensor) -> "View":
        """The units at `index`, [kv_heads, units], ascending, where they lie; of a view for one row that sees them."""
        positions = self.positions.expand(len(index), -1).gather(1, index)
        past = index.shape[1] if self.window is None else None
        return replace(self, positions=positions, order=positions, past=past, index=index)

    def at(self, index: Tensor) -> "View":
        """The units at `index`, [units], of a view for one row that compares positions; copies."""
        return replace(
            self,
            runs=((self.keys.index_select(1, index), self.values.index_select(1, index)),),
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

    def _runs_between(self, start: int, stop: int) -> tuple[Units, ...]:
        found, first = [], 0
        for keys, values in self.runs:
            units = slice(max(start - first, 0), max(0, min(stop - first, keys.shape[1])))
            if units.start < units.stop:
                found.append((keys[:, units], values[:, units]))
            first += keys.shape[1]
        return tuple(found) or ((self.runs[-1][0][:, :0], self.runs[-1][1][:, :0]),)
