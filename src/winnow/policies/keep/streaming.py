"""StreamingLLM: attention sinks and a recent window."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from winnow.cache.layer import LayerCache
from winnow.parameters import Natural
from winnow.policies.base import Span
from winnow.policies.keep.base import KeepPolicy, cache_spans, evict_outside, window_bound


@dataclass(frozen=True)
class Streaming(KeepPolicy):
    """Keep the first `sink` tokens and the last `recent`; forget the rest.

    sink: first tokens of the text that always stay, in tokens.
    recent: last tokens that stay, the current one included, in tokens.

    A row at position `i` sees the sinks and the positions `(i - recent, i]`, whatever the size of the prefill chunk it
    came in; the cache holds at most `sink + recent + chunk` units per KV head. Rope positions are compact as in the
    paper: recent units stand at their true distances, and the sinks right before the window, that is, a query sees
    them from rope position `min(i, sink + recent - 1)`. Layers whose own sliding window is smaller than
    `sink + recent` keep that window instead. In layers that only some tokens reach, the same positions are kept and
    seen, as far as they are there.

    The authors' code evicts before a forward of several tokens, so the earlier rows of a chunk see less there than
    they would one by one; here they see the same.

    Source: Xiao et al., Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453, section 3.2.
    """

    sink: Natural = 4
    recent: int = 1024

    name = "streaming"
    source = "arXiv:2309.17453, section 3.2"
    off: ClassVar = {"recent": 1_000_000_000}
    trial: ClassVar = {"sink": 3, "recent": 9}

    def check(self) -> None:
        self.require(self.recent >= 1, f"recent={self.recent} must be at least 1: a row sees at least itself")

    def rope_positions(self, prompt: int, new: int) -> int:
        return self.sink + self.recent

    def bound(self, prompt: int, new: int, chunk: int, window: int | None) -> int | None:
        return window_bound(chunk, window) if self._window_governs(window) else self.sink + self.recent + chunk

    def spans(self, cache: LayerCache, rows: int, first: int, positions: Tensor, window: int | None) -> list[Span]:
        if self._window_governs(window):
            return cache_spans(cache, rows, window)
        if not _whole(cache):
            return self._spans_of_some(cache, rows, first, positions)
        if first + rows <= self.sink + self.recent:
            return cache_spans(cache, rows, window)
        if first < self.sink:
            # The sinks are among these rows: nothing is known without comparing positions.
            sinks = Span(0, self.sink, past=None, query_limit=self.sink + self.recent - 1)
            return [sinks, Span(self.sink, cache.stop, past=None, window=self.recent)]
        tail = cache.stop - self.recent if rows == 1 else max(cache.start, self.sink)
        recent = Span(tail, cache.stop, past=cache.stop - tail - rows, window=None if rows == 1 else self.recent)
        if self.sink == 0:
            return [recent]
        return [Span(0, self.sink, past=self.sink, query_limit=self.sink + self.recent - 1), recent]

    def evict(self, cache: LayerCache, window: int | None) -> None:
        if self._window_governs(window):
            evict_outside(cache, window)
        elif not _whole(cache):
            live, sinks = cache.live_positions(), self._sinks(cache)
            if gone := int((live[sinks:] <= live[-1:] - self.recent).sum()):
                cache.drop(gone, after=sinks)
        elif cache.length > self.sink + self.recent:
            cache.drop(cache.length - self.sink - self.recent, after=self.sink)

    def _spans_of_some(self, cache: LayerCache, rows: int, first: int, positions: Tensor) -> list[Span]:
        """The same in a layer that only some tokens have reached, where slots do not tell positions."""
        if positions[-1] < self.sink + self.recent:
            return cache_spans(cache, rows, window=None)
        sinks = self._sinks(cache)
        start = max(cache.start, sinks)
        if rows == 1:  # what is about to be evicted is not read
            start = cache.stop - int((cache.positions[start : cache.stop] > positions[-1] - self.recent).sum())
        spans = [Span(start, cache.stop, past=None, window=self.recent)]
        if sinks:
            known = None if first < self.sink else sinks
            spans.insert(0, Span(0, sinks, past=known, query_limit=self.sink + self.recent - 1))
        return spans

    def _sinks(self, cache: LayerCache) -> int:
        """How many of the first tokens a layer holds that only some have reached."""
        return cache.head or int((cache.live_positions() < self.sink).sum())

    def _window_governs(self, window: int | None) -> bool:
        return window is not None and window < self.sink + self.recent


def _whole(cache: LayerCache) -> bool:
    """Whether all tokens reach the layer."""
    return cache.gapless and cache.first in (None, 0)
