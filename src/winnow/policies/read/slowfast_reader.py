"""Slow-Fast Inference in one sequence: when its steps are slow, and what each layer has selected."""

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from winnow.cache.run import Dense
from winnow.cache.view import View
from winnow.policies.read.base import Copies, Observed, Probe, Reader, Row
from winnow.policies.read.deferred import Deferred
from winnow.policies.read.packed import Buffers
from winnow.policies.read.selection import Selection, Sizes, seen_by, select
from winnow.policies.read.selectors import Selector
from winnow.policies.read.trigger import Trigger

if TYPE_CHECKING:
    from winnow.policies.read.slowfast import SlowFast


class SlowFastReader(Reader):
    """When a sequence's steps are slow, and what each layer has selected."""

    def __init__(self, policy: "SlowFast", trigger: Trigger, selector: Selector, layers: int, prompt: int) -> None:
        self._policy, self._trigger, self._selector = policy, trigger, selector
        self._sizes = Sizes(policy.sink, policy.budget, policy.recent)
        self._layers = [_Layer() for _ in range(layers)]
        self._first = max(0, prompt - policy.bootstrap)
        self._deferred = Deferred()
        self._step = self._known = 0
        self._turn = 0
        self.slow: bool = True

    def begin(self, token: int, known: int) -> None:
        self._known = known
        self.settle()  # what the last step left undone is needed now, and the caches are about to grow
        self._step += 1
        for layer in self._layers:
            layer.publish(self._step)
        self.slow = self._trigger.fires(token)
        if not self.slow and not any(layer.current for layer in self._layers):
            self._trigger.refreshed()
            self.slow = True
        self._turn += self.slow

    def alike(self, layer: int) -> object:
        current = self._layers[layer].current
        if current is None and self._known < self._sizes.total:  # nothing can be selected yet
            return None
        if self.slow or current is None or current.tail is not None:
            return layer
        return current.appended, current.dropped

    def select(self, row: Row, views: list[View]) -> Sequence[View | Copies]:
        current = self._layers[row.layer].current
        if current is None or self._selects(row.layer):
            return views
        index = _main(views)
        packed, *recent = current.views(row, views[index], self._sizes, anchored=self._policy.recent_mode == "anchored")
        return [*views[:index], Copies(packed, self._packed), *recent, *views[index + 1 :]]

    def wants(self, row: Row, views: list[View]) -> Probe | None:
        if not row.decode:
            return "queries" if row.position >= self._first else None
        if self._layers[row.layer].current is None:  # or fewer, behind a window: `_take` counts
            return "logits" if views[_main(views)].units >= self._sizes.total else None
        return "logits" if self._selects(row.layer) else None

    def observe(self, row: Row, views: list[View], observed: Observed) -> None:
        index = _main(views)
        if observed.logits:
            main, kept = seen_by(row, views[index])
            self._take(row, main, observed.logits[index].view(len(main.keys), -1, views[index].units)[..., kept])
            return
        voters = observed.positions >= self._first
        self._layers[row.layer].hear(observed.queries[index][voters], observed.positions[voters])
        if row.last:
            self._poll(row, views[index])

    def _poll(self, row: Row, view: View) -> None:
        """Let the prompt's last rows select."""
        each, places = self._layers[row.layer].heard()
        main, _ = seen_by(row, view)
        if main.units < self._sizes.total:
            return
        rows, _, head_dim = each.shape
        kv_heads = len(main.keys)
        vectors = each.view(rows, kv_heads, -1, head_dim).transpose(0, 1)  # [kv_heads, rows, group, head_dim]
        logits = row.match(vectors.reshape(-1, head_dim), main.keys).view(kv_heads, rows, -1, main.units)
        # Most units stand before all of these rows, and every row sees them.
        plain = row.ordered and main.window is None
        seen = int((main.positions < places.min()).sum(-1).min()) if plain else 0
        if seen < main.units:
            distance = places[:, None] - main.positions[..., None, seen:]  # [rows, units], of each KV head or of all
            hidden = distance < 0 if main.window is None else (distance < 0) | (distance >= main.window)
            logits[..., seen:].masked_fill_(hidden[..., None, :], float("-inf"))
        self._take(row, main, logits.flatten(1, 2), (row.position - places).repeat_interleave(logits.shape[2]))

    def settle(self) -> None:
        """Wait for selections that are still being made."""
        self._deferred.wait()

    def reset(self) -> None:
        self.settle()
        for layer in self._layers:
            layer.forget()

    def fork(self) -> Reader:
        self.settle()
        return super().fork()

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self._layers)

    def _packed(self, layer: int) -> Dense:
        """What is packed in a layer that has selected."""
        selection = self._layers[layer].current
        assert selection is not None
        return selection.buffers.units

    def _selects(self, layer: int) -> bool:
        """Whether this step is slow in a layer."""
        groups = self._policy.layer_groups
        return self.slow and layer % groups == self._turn % groups

    def _take(self, row: Row, main: View, logits: Tensor, behind: Tensor | None = None) -> None:
        """Let rows select. logits: [kv_heads, rows, units of `main`], rows being those of all queries of a KV head;
        behind: [rows], see `Evidence`."""
        layer, delay = self._layers[row.layer], self._policy.publish_delay
        if main.units < self._sizes.total:  # it reads all it has; what was selected before may be gone
            layer.forget()
            return
        # Where nothing is there to read yet, waiting would only make steps dense.
        due = self._step + 1 + delay if delay and layer.current is not None else None
        last, buffers = layer.newest, layer.buffers(main, self._sizes, reuse=due is None)

        def work() -> None:
            layer.take(select(row, main, logits, behind, self._selector, self._sizes, last, buffers), due)

        used = [logits, main.keys, main.values, main.positions, *buffers.tensors]
        self._deferred.submit(used if behind is None else [*used, behind], work)


def _main(views: Sequence[View]) -> int:
    """Index of the view that is narrowed: the widest, but for tokens that queries see from elsewhere, which stay."""
    plain = [index for index, view in enumerate(views) if view.query_limit is None]
    return max(plain, key=lambda index: views[index].units)


class _Layer:
    """The selections of one layer: the one that is read, and those to come, each with the step that first reads it."""

    def __init__(self) -> None:
        self.current: Selection | None = None
        self._queries: list[tuple[Tensor, Tensor]] = []  # of the prompt's last rows: vectors and positions
        self._pending: deque[tuple[int, Selection]] = deque()
        self._spare: list[Buffers] = []
        self._made = 0  # bytes of all buffers
        self._tails = 0  # the most bytes of the tails of selections held at once

    @property
    def nbytes(self) -> int:
        """Bytes of the packed copies, their tails, and the queries that wait for the end of the prompt."""
        waiting = (tensor for pair in self._queries for tensor in pair)
        return self._made + self._tails + sum(each.nbytes for each in waiting)

    @property
    def newest(self) -> Selection | None:
        return self._pending[-1][1] if self._pending else self.current

    def hear(self, queries: Tensor, positions: Tensor) -> None:
        """Keep some of the prompt's last rows: [rows, q_heads, head_dim], [rows]."""
        self._queries.append((queries, positions))

    def heard(self) -> tuple[Tensor, Tensor]:
        """All the rows kept, which are forgotten."""
        queries, positions = (torch.cat(list(parts)) for parts in zip(*self._queries, strict=True))
        self._queries.clear()
        return queries, positions

    def take(self, selection: Selection, due: int | None) -> None:
        """A selection has been made, to be read from step `due` on; None: from the next."""
        if due is None:
            self.current = selection
        else:
            self._pending.append((due, selection))
        self._tails = max(self._tails, sum(each.tail_nbytes for each in self._held()))

    def publish(self, step: int) -> None:
        """Begin to read what is due."""
        while self._pending and self._pending[0][0] <= step:
            if self.current is not None:
                self._spare.append(self.current.buffers)
            self.current = self._pending.popleft()[1]

    def buffers(self, view: View, sizes: Sizes, *, reuse: bool) -> Buffers:
        """Memory for a selection. reuse: in place of the one that was read up to now, which nobody reads any more."""
        if reuse and self.current is not None:
            return self.current.buffers
        if not self._spare:
            self._spare.append(Buffers.beside(view, sizes.sink + sizes.budget, sizes.budget))
            self._made += self._spare[-1].nbytes
        return self._spare.pop()

    def forget(self) -> None:
        """Nothing is selected any more."""
        self._spare += [selection.buffers for selection in self._held()]
        self.current = None
        self._pending.clear()
        self._queries.clear()

    def _held(self) -> list[Selection]:
        """All selections that are read now or later."""
        return [*([self.current] if self.current else []), *(selection for _, selection in self._pending)]
