"""What every keep policy is."""

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from winnow.policies.base import Policy, Span

if TYPE_CHECKING:
    from winnow.cache.layer import LayerCache


class KeepPolicy(Policy):
    """Which units stay in a layer's cache, and which of them a row may see."""

    verb = "keep"
    # Whether it can act where the positions in a layer's cache have gaps, or do not rise because tokens were revived.
    takes_gaps: ClassVar[bool] = False

    @property
    def max_distance(self) -> int | None:
        """How many rope positions are ever in use, where a policy bounds them: then a prompt may be of any length."""
        return None

    def bound(self, chunk: int, window: int | None) -> int | None:
        """The most units per KV head that a layer ever holds, `chunk` rows at a time; None: no bound.

        window: the layer's own.
        """
        return window_bound(chunk, window)

    def spans(self, cache: "LayerCache", rows: int, first: int, positions: Tensor, window: int | None) -> list[Span]:
        """What `rows` new rows see, their units being the last ones appended to `cache`.

        first: the position of the first of them, as a Python int; positions: [rows]; window: the layer's own.
        """
        return cache_spans(cache, rows, window)

    def evict(self, cache: "LayerCache", window: int | None) -> None:
        """Drop what no later row may see, after the attention of a step."""
        evict_outside(cache, window)


def cache_spans(cache: "LayerCache", rows: int, window: int | None) -> list[Span]:
    """Everything live, causal and inside the layer's window. One row reads no more than its window holds."""
    start, stop = cache.start, cache.stop
    if cache.head:
        return [Span(0, cache.head, past=cache.head), Span(start, stop, stop - start - rows, window)]
    if window is not None and rows == 1 and cache.gapless:
        return [Span(max(start, stop - window), stop, past=min(stop - start, window) - 1)]
    return [Span(start, stop, stop - start - rows, window)]


def evict_outside(cache: "LayerCache", window: int | None) -> None:
    """Drop the units that have left a sliding window: the next row sees itself and `window - 1` before it."""
    if window is None:
        return
    if cache.gapless:
        cache.drop(max(0, cache.length - (window - 1)))
        return
    live = cache.positions[..., cache.start : cache.stop]
    gone = (live < live[..., -1:] - (window - 2)).sum(-1)  # ascending, so these are the oldest
    cache.drop(int(gone.min()))


def window_bound(chunk: int, window: int | None) -> int | None:
    """The most units of a layer that keeps what its window holds."""
    return None if window is None else window - 1 + chunk
