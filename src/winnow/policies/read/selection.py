"""What fast steps read in one layer: a packed copy of the first and the selected units, and the recent in place."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.cache.run import Dense
from winnow.cache.view import NOBODY, View
from winnow.kernels.select import top
from winnow.policies.read.base import Row
from winnow.policies.read.packed import Buffers
from winnow.policies.read.selectors import Evidence, Last, Selector


@dataclass(frozen=True)
class Sizes:
    """Units per KV head: the first, the selected, the recent."""

    sink: int
    budget: int
    recent: int

    @property
    def total(self) -> int:
        return self.sink + self.budget + self.recent


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
        held = () if self.tail is None else (self.tail.keys, self.tail.values, self.tail.positions)
        return sum(each.nbytes for each in held)

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
        order = None
        if row.dropped > self.dropped:  # what has left the cache since is gone here too
            positions = self.buffers.positions
            order = positions.masked_fill(positions < main.positions[..., :1], NOBODY)
        return self.buffers.view(row.window, main.query_limit, order)


def select(
    row: Row,
    main: View,
    logits: Tensor,
    behind: Tensor | None,
    selector: Selector,
    sizes: Sizes,
    last: Selection | None,
    buffers: Buffers,
) -> Selection:
    """Choose among the units of `main`, at least as many as `sizes` says, and pack them into `buffers`.

    logits: [kv_heads, rows, units], -inf where a row does not see a unit. behind: see `Evidence`.
    """
    order = None if row.ordered else main.positions.argsort()
    positions = main.positions
    if order is not None:
        logits, positions = logits.index_select(-1, order), positions[order]
    candidates = slice(sizes.sink, main.units - sizes.recent)
    evidence = Evidence(
        logits,
        candidates,
        _norms(main.keys, order, candidates) if selector.norms else None,
        _found(last, positions[..., candidates], sizes.sink) if selector.memory and last is not None else None,
        behind,
    )
    scores = selector.scores(evidence)
    chosen = top(scores, sizes.budget)
    first = torch.arange(sizes.sink, device=chosen.device).expand(len(chosen), -1)
    index = torch.cat((first, sizes.sink + chosen), 1)
    buffers.fill(main, index if order is None else order[index])
    torch.gather(scores, 1, chosen, out=buffers.scores)
    return Selection(buffers, _tail(row, main, order, sizes.recent), row.appended, row.dropped)


def _norms(keys: Tensor, order: Tensor | None, candidates: slice) -> Tensor:
    """[kv_heads, candidates] float32."""
    norms = torch.linalg.vector_norm(keys, dim=-1, dtype=torch.float32)
    return (norms if order is None else norms.index_select(-1, order))[:, candidates]


def _tail(row: Row, main: View, order: Tensor | None, recent: int) -> View | None:
    """A copy of the recent units, where they do not stand at the end of the cache."""
    if not recent or (order is None and not main.gathered):
        return None
    index = torch.arange(main.units, device=main.keys.device) if order is None else order
    index = index[main.units - recent :]
    places = main.positions[..., index]
    past = None if row.window is not None else recent
    return View(
        (Dense(main.keys[:, index], main.values[:, index]),), places, places, past, row.window, main.query_limit
    )


def _found(last: Selection, positions: Tensor, sink: int) -> Last:
    """What was selected last, among candidates at `positions`, [..., candidates], ascending."""
    before = last.buffers.positions[:, sink:]
    index = torch.searchsorted(positions.contiguous(), before.contiguous()).clamp_max(positions.shape[-1] - 1)
    now = positions[index] if positions.dim() == 1 else positions.gather(1, index)
    return Last(index, last.buffers.scores.masked_fill(now != before, -math.inf))


def seen_by(row: Row, view: View) -> tuple[View, Tensor | slice]:
    """The units of a view that a row sees, where a window has left some behind, and which of the view's they are.

    Where heads keep different tokens, all stay.
    """
    everything = slice(0, view.units)
    if view.window is None or view.positions.dim() == 2:
        return view, everything
    hidden = view.positions <= row.position - view.window
    if row.ordered:
        kept = slice(int(hidden.sum()), view.units)
        return view.between(kept.start, kept.stop), kept
    index = (~hidden).nonzero().flatten()
    return (view, everything) if len(index) == view.units else (view.at(index), index)
