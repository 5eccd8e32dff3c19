"""Quest: bounds on the keys of a page say which pages the current query could match best."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from winnow.cache.layer import GROWTH
from winnow.cache.view import View
from winnow.parameters import Count, Natural
from winnow.policies.base import ModelShape, Services
from winnow.policies.compute.base import Deep
from winnow.policies.read.base import Keys, Pages, Reader, ReadPolicy, Row


@dataclass(frozen=True)
class Quest(ReadPolicy):
    """Read the pages of units that the current query could match best, chosen anew in every step and layer.

    page: units of a page. budget: units per KV head and layer that a step reads at most, the newest page included; a
    multiple of `page`, at least two pages. dense_layers: so many of the first layers read everything.

    Of a page the least and the greatest value in each channel of its keys are held. With a query q, no key of the page
    can match better than the sum over channels c of max(q_c least_c, q_c greatest_c). The budget / page - 1 pages with
    the highest bounds are read, and the newest, which may be incomplete. A page is chosen for a KV head, by the highest
    of the bounds of the query heads that share it; the paper has one query head for each.

    With n units, r = (n - 1) % page + 1 of them in the newest page, a layer reads all per KV head if n <= budget.
    Otherwise it reads budget - page + r, and the bounds of (n - 1) // page pages, which have the bytes of one unit
    each: so `units_read` counts them, and `aux_bytes` too. Chosen pages are read where they lie. Units are numbered as
    they come into a layer; in a page that has lost units to a sliding window or to eviction, nothing is read. The first
    units that `streaming` keeps are read besides.

    Source: Tang et al., Quest, arXiv:2406.10774, section 3, and its two dense layers.
    """

    page: Count = 16
    budget: int = 1024
    dense_layers: Natural = 2

    name = "quest"
    source = "arXiv:2406.10774, section 3"
    off: ClassVar = {"budget": 2**40}
    trial: ClassVar = {"page": 2, "budget": 6, "dense_layers": 1}

    def check(self) -> None:
        least, nearest = 2 * self.page, max(2, round(self.budget / self.page)) * self.page
        self.require(
            self.budget >= least,
            f"budget={self.budget} leaves no page to choose beside the newest one; with page={self.page} use at least "
            f"budget={least}",
        )
        self.require(
            self.budget % self.page == 0,
            f"budget={self.budget} is not a whole number of pages of page={self.page} units; use budget={nearest}",
        )

    def validate(self, shape: ModelShape) -> None:
        self.require(
            self.dense_layers <= shape.layers,
            f"dense_layers={self.dense_layers} is more than the model's {shape.layers} layers",
        )

    def bound(self, shape: ModelShape, prompt: int, new: int) -> int:
        pages = (prompt + new) // self.page
        if pages * self.page < self.budget:
            return 0
        return (shape.layers - self.dense_layers) * pages * shape.kv_heads * shape.unit_bytes

    def reader(self, shape: ModelShape, services: Services, prompt: int) -> Reader:
        return QuestReader(self)

    def prefix_stable(self, n: int, deep: Deep) -> int:
        """The prompt, whose rows read everything."""
        return min(n, deep.prompt)


class QuestReader(Reader):
    """The bounds of every layer's pages."""

    def __init__(self, policy: Quest) -> None:
        self._policy = policy
        self._bounds: dict[int, Bounds] = {}

    def alike(self, layer: int) -> object:
        return layer < self._policy.dense_layers

    def select(self, row: Row, views: list[View]) -> Sequence[View | Pages]:
        *others, view = views
        if row.layer < self._policy.dense_layers or view.units <= self._policy.budget:
            return views
        return [*others, *self._paged(row, view)]

    def prompt_ends(self, layer: int, first: int, units: int, keys: Keys) -> None:
        """Pages that are complete are known before the first step asks for them."""
        if layer >= self._policy.dense_layers and units > self._policy.budget:
            start, stop = self._complete(first, units)
            behind = start * self._policy.page - first
            self._of(layer).follow(lambda begin, end: keys(behind + begin, behind + end), start, stop)

    def reset(self) -> None:
        self._bounds.clear()

    @property
    def nbytes(self) -> int:
        return sum(bounds.peak_nbytes for bounds in self._bounds.values())

    def _paged(self, row: Row, view: View) -> list[View | Pages]:
        """The complete pages of a view, of which some are read, and the newest."""
        assert view.place is not None
        assert not view.gathered  # only revivals leave units out
        page, pages = self._policy.page, self._policy.budget // self._policy.page - 1
        first = row.dropped + view.place  # of all units that ever came, the number of the view's first
        start, stop = self._complete(first, view.units)
        begin, end = start * page - first, stop * page - first

        def bounds(layer: int, keys: Keys) -> Tensor:
            return self._of(layer).follow(keys, start, stop)

        complete = row.ready(view).between(begin, end)
        return [Pages(complete, page, pages, bounds), view.between(end, view.units)]

    def _complete(self, first: int, units: int) -> tuple[int, int]:
        """The complete pages of so many units, from number `first` on, but for the newest."""
        return -(-first // self._policy.page), (first + units - 1) // self._policy.page

    def _of(self, layer: int) -> "Bounds":
        return self._bounds.setdefault(layer, Bounds(self._policy.page))


class Bounds:
    """Per channel, the least and the greatest keys of a layer's complete pages, which are known by their numbers."""

    def __init__(self, page: int) -> None:
        self._page = page
        self._held: Tensor | None = None  # [2, kv_heads, room, head_dim], from page `_first` on
        self._first = 0
        self._stop = 0
        self._peak = 0  # pages

    @property
    def peak_nbytes(self) -> int:
        """Bytes of the most bounds held at once."""
        return 0 if self._held is None else self._held[:, :, 0].nbytes * self._peak

    def follow(self, keys: Keys, start: int, stop: int) -> Tensor:
        """The bounds of pages `[start, stop)`, [2, kv_heads, pages, head_dim]; those before are forgotten.

        keys: of units of these pages, [kv_heads, units, head_dim]; a page that is known is not looked at again.
        """
        known = max(start, self._stop)
        if self._held is None or known < stop:
            new = keys((known - start) * self._page, (stop - start) * self._page)
            self._held = self._room(new, start, stop)
            pages, places = new.unflatten(1, (-1, self._page)), slice(known - self._first, stop - self._first)
            self._held[0][:, places], self._held[1][:, places] = pages.amin(2), pages.amax(2)
        assert self._held is not None
        self._stop = stop
        self._peak = max(self._peak, stop - start)
        return self._held[:, :, start - self._first : stop - self._first]

    def _room(self, keys: Tensor, start: int, stop: int) -> Tensor:
        """Memory with room for pages up to `stop`; where there is none, what was known from `start` on moves."""
        held = self._held
        if held is not None and stop - self._first <= held.shape[2]:
            return held
        wider = keys.new_empty(2, len(keys), int((stop - start) * GROWTH) + 1, keys.shape[2])
        if held is not None and start < self._stop:
            wider[:, :, : self._stop - start] = held[:, :, start - self._first : self._stop - self._first]
        self._held, self._first = wider, start
        return wider
