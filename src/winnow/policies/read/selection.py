"""What fast steps read in one layer: a packed copy of the first and the selected units, and the recent in place."""

from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.cache.view import View
from winnow.policies.read.base import Row
from winnow.policies.read.selectors import Evidence, Selector, top

NOBODY = 2**62  # in place of the position of a unit that no row sees


@dataclass(frozen=True)
class Sizes:
    """Units per KV head: the first, the selected, the recent."""

    sink: int
    budget: int
    recent: int

    @property
    def total(self) -> int:
        return self.sink + self.budget + self.recent


@dataclass
class Buffers:
    """Memory of a packed copy of sink + budget units: keys, values [kv_heads, units, head_dim], positions alike."""

    keys: Tensor
    values: Tensor
    positions: Tensor

    @classmethod
    def beside(cls, view: View, units: int) -> "Buffers":
        """For `units` units per KV head of a view."""
        kv_heads, _, head_dim = view.keys.shape
        keys, values = (view.keys.new_empty(kv_heads, units, head_dim) for _ in range(2))
        return cls(keys, values, view.positions.new_empty(kv_heads, units))

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes + self.positions.nbytes


@dataclass(frozen=True)
class Selection:
    """What was selected at one slow step.

    tail: a copy of the units that were recent then, where they do not stand at the end of the cache. appended, dropped:
    of the cache at that time.
    """

    buffers: Buffers
    tail: View | None
    appended: int
    dropped: int

    @property
    def tail_nbytes(self) -> int:
        return 0 if self.tail is None else self.tail.keys.nbytes + self.tail.values.nbytes

    def views(self, row: Row, main: View, sizes: Sizes, *, anchored: bool) -> list[View]:
        """What a later row reads instead of `main`, the units that it may see."""
        grown = row.appended - self.appended
        recent = min(sizes.recent + (grown if anchored else 0), main.units)
        placed = recent if self.tail is None else min(grown, recent)
        views = [self._packed(row, main)]
        if self.tail is not None and placed < recent:
            views.append(self.tail.between(self.tail.units - (recent - placed), self.tail.units))
        if placed:
            views.append(main.between(main.units - placed, main.units))
        return views

    def _packed(self, row: Row, main: View) -> View:
        held = self.buffers
        seen = held.positions
        if row.dropped > self.dropped:  # what has left the cache since is gone here too
            seen = seen.masked_fill(seen < main.positions[..., :1], NOBODY)
        past = held.keys.shape[1] if row.window is None and seen is held.positions else None
        return View(held.keys, held.values, held.positions, seen, past, row.window, main.query_limit)


def select(
    row: Row, main: View, logits: Tensor, selector: Selector, sizes: Sizes, last: Selection | None, buffers: Buffers
) -> Selection:
    """Choose among the units of `main`, at least as many as `sizes` says, and pack them into `buffers`.

    logits: [kv_heads, rows, units], -inf where a row does not see a unit.
    """
    order = None if row.ordered else main.positions.argsort()
    candidates = slice(sizes.sink, main.units - sizes.recent)
    held = Buffers(buffers.keys, buffers.values, buffers.positions)
    positions, norms = main.positions, main.norms
    if order is not None:
        logits, positions = logits.index_select(-1, order), positions[order]
        norms = None if norms is None else norms.index_select(-1, order)
    evidence = Evidence(
        logits[..., candidates],
        None if norms is None else norms[:, candidates],
        _selected(last, positions[..., candidates], sizes.sink, len(main.keys)) if selector.memory else None,
    )
    chosen = sizes.sink + top(selector.scores(evidence), sizes.budget)
    first = torch.arange(sizes.sink, device=chosen.device).expand(len(chosen), -1)
    index = torch.cat((first, chosen), 1)
    torch.gather(positions.expand(len(index), -1), 1, index, out=held.positions)
    index = index if order is None else order[index]
    for source, target in ((main.keys, held.keys), (main.values, held.values)):
        for head, units in enumerate(index):
            torch.index_select(source[head], 0, units, out=target[head])
    tail = None
    if sizes.recent and (main.gathered or order is not None):
        recent = torch.arange(main.units, device=index.device) if order is None else order
        recent = recent[main.units - sizes.recent :]
        places = main.positions[..., recent]
        past = None if row.window is not None else sizes.recent
        keys, values = main.keys[:, recent], main.values[:, recent]
        tail = View(keys, values, places, places, past, row.window, main.query_limit)
    return Selection(held, tail, row.appended, row.dropped)


def _selected(last: Selection | None, positions: Tensor, sink: int, kv_heads: int) -> Tensor:
    """[kv_heads, candidates] bool: which of `positions` were selected last."""
    if last is None:
        return torch.zeros(kv_heads, positions.shape[-1], dtype=torch.bool, device=positions.device)
    before = last.buffers.positions[:, sink:].contiguous()
    now = positions.expand(len(before), -1).contiguous()
    place = torch.searchsorted(before, now).clamp_max(before.shape[1] - 1)
    return before.gather(1, place) == now


def visible(view: View, row: Row) -> View:
    """The units of a view that the row sees, where a window has left some of them behind."""
    if view.window is None or not row.ordered or view.positions.dim() == 2:
        return view
    return view.between(int((view.positions <= row.position - view.window).sum()), view.units)
