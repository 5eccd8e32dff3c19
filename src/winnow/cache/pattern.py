"""What of a layer's live units the rows of a step see, and which leave as the text goes on, whatever their worth."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

if TYPE_CHECKING:
    from winnow.cache.layer import LayerCache


@dataclass(frozen=True)
class Span:
    """A run of live slots that the rows of a segment attend to; the spans of a layer are merged by log-sum-exp.

    start, stop: slots. past: how many of its leading units every row may see by causality, the others being the rows
    themselves in order; None: compare positions. window: units at this distance or farther are not seen.
    query_limit: the queries are rotated at no more than this rope position here; None: at the rows' own positions.
    """

    start: int
    stop: int
    past: int | None
    window: int | None = None
    query_limit: int | None = None


@dataclass(frozen=True)
class All:
    """Everything that a layer's own window lets be seen; what has left it leaves.

    held: whether what is there stays, seen by every row, until units are evicted by choice.
    """

    held: ClassVar[bool] = False

    def spans(self, cache: "LayerCache", rows: int, first: int, positions: Tensor, window: int | None) -> list[Span]:
        """What `rows` new rows see, their units being the last ones appended to `cache`.

        first: the position of the first of them, as a Python int; positions: [rows]; window: the layer's own. One row
        reads no more than its window holds.
        """
        start, stop = cache.start, cache.stop
        if cache.head:
            return [Span(0, cache.head, past=cache.head), Span(start, stop, stop - start - rows, window)]
        if window is not None and rows == 1 and cache.gapless:
            return [Span(max(start, stop - window), stop, past=min(stop - start, window) - 1)]
        return [Span(start, stop, stop - start - rows, window)]

    def evict(self, cache: "LayerCache", window: int | None) -> None:
        """Drop what no later row may see, once it is known what the rows of a step read in a layer: the next row sees
        itself and `window - 1` before it.

        With `LayerCache.drop`, which moves nothing: the rows may not have read it yet.
        """
        if window is None:
            return
        if cache.gapless:
            cache.drop(max(0, cache.length - (window - 1)))
            return
        live = cache.positions[..., cache.start : cache.stop]
        gone = (live < live[..., -1:] - (window - 2)).sum(-1)  # ascending, so these are the oldest
        cache.drop(int(gone.min()))

    def told_by_slots(self, cache: "LayerCache", window: int | None) -> bool:
        """Whether `spans` and `evict` follow from where units stand, whatever their positions are."""
        return window is None or cache.gapless

    def bound(self, chunk: int, window: int | None) -> int | None:
        """The most units per KV head that a layer ever holds, `chunk` rows at a time; None: one for every token."""
        return None if window is None else window - 1 + chunk


@dataclass(frozen=True)
class Held(All):
    """Everything that is there, until units are evicted by choice; what has left the layer's window, too."""

    held = True

    def spans(self, cache: "LayerCache", rows: int, first: int, positions: Tensor, window: int | None) -> list[Span]:
        return [Span(cache.start, cache.stop, cache.length - rows, window)]

    def evict(self, cache: "LayerCache", window: int | None) -> None:
        """Nothing leaves by itself."""

    def told_by_slots(self, cache: "LayerCache", window: int | None) -> bool:
        return True


@dataclass(frozen=True)
class SinkWindow(All):
    """The first `sink` tokens of the text and the last `recent`, for every row its own.

    A row sees the sinks from rope position `sink + recent - 1` at most. In layers that only some tokens reach, the same
    positions are seen, as far as they are there.
    """

    sink: int
    recent: int

    def spans(self, cache: "LayerCache", rows: int, first: int, positions: Tensor, window: int | None) -> list[Span]:
        if not _whole(cache):
            return self._spans_of_some(cache, rows, first, positions)
        if first + rows <= self.sink + self.recent:
            return super().spans(cache, rows, first, positions, window)
        if first < self.sink:
            # The sinks are among these rows: nothing is known without comparing positions.
            sinks = Span(0, self.sink, past=None, query_limit=self._last)
            return [sinks, Span(self.sink, cache.stop, past=None, window=self.recent)]
        tail = cache.stop - self.recent if rows == 1 else max(cache.start, self.sink)
        recent = Span(tail, cache.stop, past=cache.stop - tail - rows, window=None if rows == 1 else self.recent)
        if self.sink == 0:
            return [recent]
        return [Span(0, self.sink, past=self.sink, query_limit=self._last), recent]

    def evict(self, cache: "LayerCache", window: int | None) -> None:
        if not _whole(cache):
            live, sinks = cache.live_positions(), self._sinks(cache)
            if gone := int((live[sinks:] <= live[-1:] - self.recent).sum()):
                cache.drop(gone, after=sinks)
        elif cache.length > self.sink + self.recent:
            cache.drop(cache.length - self.sink - self.recent, after=self.sink)

    def told_by_slots(self, cache: "LayerCache", window: int | None) -> bool:
        return _whole(cache)

    def bound(self, chunk: int, window: int | None) -> int | None:
        return self.sink + self.recent + chunk

    @property
    def _last(self) -> int:
        return self.sink + self.recent - 1

    def _spans_of_some(self, cache: "LayerCache", rows: int, first: int, positions: Tensor) -> list[Span]:
        """The same in a layer that only some tokens have reached, where slots do not tell positions."""
        if positions[-1] <= self._last:
            return super().spans(cache, rows, first, positions, window=None)
        sinks = self._sinks(cache)
        start = max(cache.start, sinks)
        if rows == 1:  # what is about to be evicted is not read
            start = cache.stop - int((cache.positions[start : cache.stop] > positions[-1] - self.recent).sum())
        spans = [Span(start, cache.stop, past=None, window=self.recent)]
        if sinks:
            known = None if first < self.sink else sinks
            spans.insert(0, Span(0, sinks, past=known, query_limit=self._last))
        return spans

    def _sinks(self, cache: "LayerCache") -> int:
        """How many of the first tokens a layer holds that only some have reached."""
        return cache.head or int((cache.live_positions() < self.sink).sum())


def _whole(cache: "LayerCache") -> bool:
    """Whether all tokens reach the layer."""
    return cache.gapless and cache.first in (None, 0)


ALL, HELD = All(), Held()
