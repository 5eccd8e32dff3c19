"""What every keep policy is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor

from winnow.policies.base import Policy, Services, Span

if TYPE_CHECKING:
    from winnow.cache.layer import LayerCache

# (layer, q, k, v) -> [kv_heads, rows] float32: scores of new units from the projections of their rows, unrotated,
# q: [q_heads, rows, head_dim], k, v: [kv_heads, rows, head_dim].
UnitScorer = Callable[[int, Tensor, Tensor, Tensor], Tensor]


Needs = Literal["units", "projections", "attention", "outputs"]


@dataclass(frozen=True)
class Moment:
    """When a layer's cache is compressed.

    prompt: prompt tokens; known: tokens so far, all of which have their units. window: the layer's own. room: units
    that are sure to come before the next time. surprisal: [tokens since the last time] float32, see
    `KeepPolicy.surprisal`; None where it was not asked for. late: whether all units of the prompt have just come at
    once, those of tokens that waited for its end below.
    """

    prompt: int
    known: int
    window: int | None
    room: int
    surprisal: Tensor | None = None
    late: bool = False


class KeepPolicy(Policy):
    """Which units stay in a layer's cache, and which of them a row may see."""

    verb = "keep"
    # What it needs of a prompt token in a layer, besides its unit: the row's projections there, its attention before
    # the next eviction, or that it reaches the end of the last layer. Where tokens stop, layers above may lack these.
    needs: ClassVar[Needs] = "units"
    # Whether it can act where tokens wait at a layer for the end of the prompt, and may come back later.
    takes_waits: ClassVar[bool] = False
    # Whether all layers and KV heads keep the same tokens, but for sliding windows.
    same_in_layers: ClassVar[bool] = True

    @property
    def votes_in_decode(self) -> bool:
        """Whether the rows of decode steps vote, so that each of them has to read all units."""
        return False

    def rope_positions(self, prompt: int, new: int) -> int | None:
        """How many rope positions a prompt and `new` tokens use, where that is fewer than tokens; else None."""
        return None

    def bound(self, prompt: int, new: int, chunk: int, window: int | None) -> int | None:
        """The most units per KV head that a layer ever holds, `chunk` rows at a time; None: one for every token.

        prompt, new: tokens; window: the layer's own.
        """
        return window_bound(chunk, window)

    def check_prompt(self, prompt: int) -> None:
        """Raise InputError where a prompt of so many tokens cannot be kept this way."""

    def spans(self, cache: "LayerCache", rows: int, first: int, positions: Tensor, window: int | None) -> list[Span]:
        """What `rows` new rows see, their units being the last ones appended to `cache`.

        first: the position of the first of them, as a Python int; positions: [rows]; window: the layer's own.
        """
        return cache_spans(cache, rows, window)

    def evict(self, cache: "LayerCache", window: int | None) -> None:
        """Drop what no later row may see, once it is known what the rows of a step read in a layer.

        With `LayerCache.drop`, which moves nothing: the rows may not have read it yet.
        """
        evict_outside(cache, window)

    def boundary(self, known: int, prompt: int) -> int | None:
        """After how many tokens, more than `known`, all layers are compressed next; None: never again.

        No step goes across it, so that what is kept does not depend on how the tokens arrive.
        """
        return None

    def compress(self, cache: "LayerCache", moment: Moment) -> None:
        """Drop units of a layer at a boundary, all layers having seen all tokens up to it."""

    def compact(self, window: int | None) -> bool:
        """Whether, in layers of this window, the rope position of a unit is its place among those that are kept.

        Keys are kept unrotated then, and rotated when they are used, until no eviction is to come.
        """
        return False

    def scores_units(self, window: int | None) -> bool:
        """Whether every unit has a score, in layers of this window: see `LayerCache.scores`."""
        return False

    def unit_scorer(self, services: Services) -> UnitScorer | None:
        """What scores units once and for all, when they are made; None: they begin with 0.

        Raises ModelError where the model has no such thing.
        """
        return None

    def voters(self, first: int, prompt: int) -> int | None:
        """From which position on rows vote with their attention on all units; None: they do not.

        first: the position of the first of some rows before the same boundary.
        """
        return None

    def votes(self, weights: Tensor) -> Tensor:
        """What rows add to the scores of units. weights: [rows, kv_heads, group, units] float32, 0 where a row does not
        see a unit; returns [kv_heads, units]."""
        return weights.mean(2).sum(0)

    @property
    def surprisal(self) -> Literal["next", "repeat"] | None:
        """What to tell `compress` of every token: -ln P of the token itself ("next"), or of its repetition ("repeat"),
        which is to come once more; the first of a text has no other than infinity."""
        return None


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
