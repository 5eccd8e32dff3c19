"""The units that rows attend to in one layer."""

from dataclasses import dataclass, replace

from torch import Tensor

NOBODY = 2**62  # in place of the position of a unit that no row sees


@dataclass(frozen=True)
class View:
    """Units that rows attend to: tensors [kv_heads, units, head_dim], positions [..., units].

    order: what the rows' positions are compared with: the units' positions, or one that every row sees. past, window,
    query_limit: as in `Span`. norms: [kv_heads, units] float32, of the keys, where the cache has them.
    place: of the first of them among the live units of the cache, the others following it one by one; None: these are
    copies, with keys that are rotated already where others are yet to be. gathered: units between them were left out.
    """

    keys: Tensor
    values: Tensor
    positions: Tensor
    order: Tensor
    past: int | None
    window: int | None = None
    query_limit: int | None = None
    norms: Tensor | None = None
    place: int | None = None
    gathered: bool = False

    @property
    def units(self) -> int:
        """Per KV head."""
        return self.keys.shape[1]

    def with_keys(self, keys: Tensor) -> "View":
        """The same units with other keys."""
        return replace(self, keys=keys)

    def at(self, index: Tensor) -> "View":
        """The units at `index`, [units], of a view for one row that compares positions; copies."""
        return replace(
            self,
            keys=self.keys.index_select(1, index),
            values=self.values.index_select(1, index),
            positions=self.positions[..., index],
            order=self.order[..., index],
            past=None,
            norms=None if self.norms is None else self.norms[:, index],
            gathered=True,
        )

    def between(self, start: int, stop: int) -> "View":
        """The units `[start, stop)` of a view for one row."""
        units = slice(start, stop)
        positions = self.positions[..., units]
        return View(
            self.keys[:, units],
            self.values[:, units],
            positions,
            positions if self.order is self.positions else self.order[..., units],
            None if self.past is None else max(0, min(self.past, stop) - start),
            self.window,
            self.query_limit,
            None if self.norms is None else self.norms[:, units],
            None if self.place is None else self.place + start,
            self.gathered,
        )
