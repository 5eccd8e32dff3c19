"""Reading the first units and the recent ones only: what selecting units has to beat."""

from dataclasses import dataclass
from typing import ClassVar

from winnow.cache.view import View
from winnow.parameters import Natural
from winnow.policies.base import ModelShape, Services
from winnow.policies.compute.base import Deep
from winnow.policies.read.base import Reader, ReadPolicy, Row


@dataclass(frozen=True)
class SinkRecent(ReadPolicy):
    """Read the first units and the recent ones, in every step; nothing in between is ever read again.

    sink: first units of a layer that are read, per KV head. recent: last units that are read, the current one
    included.

    Both are read where they lie, so nothing is copied and `aux_bytes` stays 0. A layer with n units that a step may see
    reads min(n, sink + recent) of them per KV head. The prompt is processed with full attention and the cache keeps
    everything, at the positions of the text: that is the difference to `streaming`, whose reading this is. Where other
    policies evict units before, or a layer has a sliding window, the first are the first of those that are left.

    Source: the attention pattern of Xiao et al., StreamingLLM, arXiv:2309.17453, section 3.2, over a full cache; a
    baseline for the policies that select.
    """

    sink: Natural = 4
    recent: int = 256

    name = "sink_recent"
    source = "arXiv:2309.17453, section 3.2"
    off: ClassVar = {"recent": 1_000_000_000}
    trial: ClassVar = {"sink": 2, "recent": 4}

    def check(self) -> None:
        self.require(self.recent >= 1, f"recent={self.recent} must be at least 1: a token attends at least to itself")

    def reader(self, shape: ModelShape, services: Services, prompt: int) -> Reader:
        return SinkRecentReader(self.sink, self.recent)

    def prefix_stable(self, n: int, deep: Deep) -> int:
        """The prompt, whose rows read everything."""
        return min(n, deep.prompt)


class SinkRecentReader(Reader):
    """Knows nothing but how many units to read."""

    def __init__(self, sink: int, recent: int) -> None:
        self._sink, self._recent = sink, recent

    def alike(self, layer: int) -> object:
        return None

    def select(self, row: Row, views: list[View]) -> list[View]:
        total = sum(view.units for view in views)
        if total <= self._sink + self._recent:
            return views
        chosen, before = [], 0
        for view in views:
            sink = max(0, min(self._sink - before, view.units))
            recent = max(0, min(before + view.units - (total - self._recent), view.units))
            runs = [(0, sink), (view.units - recent, view.units)]
            chosen += [view.between(start, stop) for start, stop in runs if start < stop]
            before += view.units
        return chosen
