"""What every keep policy is: what rows see by pattern, and what is kept by score when it is time to evict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol

from torch import Tensor

from winnow.cache.pattern import ALL, All
from winnow.cache.sums import Sums
from winnow.policies.base import LayerContext, Policy, Services

if TYPE_CHECKING:
    from winnow.cache.layer import LayerCache

# (layer, q, k, v) -> [kv_heads, rows] float32: scores of new units from the projections of their rows, unrotated,
# q: [q_heads, rows, head_dim], k, v: [kv_heads, rows, head_dim].
UnitScorer = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Moments(NamedTuple):
    """Of queries, times the scale of the softmax: [q_heads, head_dim] and [q_heads, head_dim, head_dim], float32."""

    mean: Tensor
    covariance: Tensor


# (keys, values, queries) -> [kv_heads, units] float32: scores of all units that a layer holds when some are about to
# be evicted. keys, values: [kv_heads, units, head_dim] float32, in the order of their slots; keys as rows attend to
# them.
HeldScorer = Callable[[Tensor, Tensor, Moments | None], Tensor]


class Merger(Protocol):
    """What says of which units sums are made: a trained part, for one model."""

    @property
    def sums(self) -> int:
        """How many it makes, in every layer and for every KV head."""

    def __call__(self, layer: int, keys: Tensor, values: Tensor, seeds: Tensor) -> Tensor:
        """The weights of units in sums, [kv_heads, sums, units] float32.

        keys, values: [kv_heads, units, head_dim], rotated as rows attend to them, in the order of their slots. seeds:
        [kv_heads, sums], ascending: the unit that each sum is made around.
        """


class Queries(NamedTuple):
    """Which queries a scorer of held units is told of: those that rows at positions from `first` on have come to the
    layer with so far, rotated at the next `ahead` rope positions, each, on average."""

    first: int
    ahead: int


class Repeat(NamedTuple):
    """Rows by which a chunk of a prompt is read once more, behind the prompt and as if no other chunk had been.

    tokens: of the rows, the last ones the chunk's own. first, stop: where it stands, `[first, stop)` of the prompt's.
    """

    tokens: tuple[int, ...]
    first: int
    stop: int


def end_of_chunk(known: int, prompt: int, end: int, chunk: int | None, decode_chunk: int | None) -> int | None:
    """After how many tokens, more than `known`, the next chunk ends; None: there is none.

    chunk: tokens of each of the prompt's up to `end`, with which the last one ends; None: they are one. decode_chunk:
    new tokens of each behind the prompt; None: there are none.
    """
    if known < end:
        return end if chunk is None else min((known // chunk + 1) * chunk, end)
    if decode_chunk is None:
        return None
    return prompt + (max(0, known - prompt) // decode_chunk + 1) * decode_chunk


def attention_sums(weights: Tensor) -> Tensor:
    """The attention that rows give units, as the mean over the query heads of a KV head.

    weights: [rows, kv_heads, group, units] float32, 0 where a row does not see a unit; returns [kv_heads, units].
    """
    return weights.mean(2).sum(0)


@dataclass(frozen=True)
class Score:
    """Where the scores of units come from, each a float32 per KV head; they begin with 0.

    source: "kv": what `heads` makes of the projections of a unit's row, once; "attention": the `votes` of rows,
    added up; "logits": how surprising a unit's token is, -ln P of it or, `repeated`, of its repetition; "units": what
    `held` makes of the keys and values of all units that are there, anew before every eviction; "repeats": the
    greatest of the `votes` of rows that repeat a unit's chunk of the prompt (`KeepPolicy.repeats`), which are told of
    their attention to the first `sinks` units, the chunk and themselves, as one softmax.
    voters: how many of the last rows before an eviction vote, for it alone; None: all rows, for all evictions to come.
    decay: by what scores are multiplied when units have been evicted by them.
    queries: what `held` is told of queries; None: nothing.
    cancels: whether a score is a sum of larger terms of either sign, so that rounding tells less of it than its own
        size says; see `best`.
    outputs: whether what is kept is chosen by `Moment.outputs` as well.
    normalised: of "repeats", whether the attention of a row and query head to a unit is multiplied by the norm of what
        the output projection makes of the unit's value for that head, and divided by that of what entered the row's
        attention.
    """

    source: Literal["kv", "attention", "logits", "units", "repeats"]
    heads: Callable[[Services], UnitScorer] | None = None
    voters: int | None = None
    votes: Callable[[Tensor], Tensor] = attention_sums
    repeated: bool = False
    decay: float = 1.0
    held: HeldScorer | None = None
    queries: Queries | None = None
    cancels: bool = False
    outputs: bool = False
    normalised: bool = False
    sinks: int = 0

    @property
    def of_rows(self) -> str | None:
        """What of rows it is made of, in a word; None: units that came without rows have scores, too."""
        return {"kv": "projections", "attention": "attention"}.get(self.source, "queries" if self.queries else None)


@dataclass(frozen=True)
class Moment:
    """When units of a layer are evicted.

    prompt: prompt tokens; known: tokens so far, all of which have their units. late: whether all units of the prompt
    have just come at once, those of tokens that waited for its end below. outputs: [kv_heads, units], what the units
    that are held would add to the layer's output for all the attention of a row, ||W_O v||_1, as the mean over the
    query heads of a KV head; None where `Score.outputs` does not ask for it. merger: of a policy that
    keeps sums.
    """

    prompt: int
    known: int
    layer: LayerContext
    late: bool = False
    outputs: Tensor | None = None
    merger: Merger | None = None


class KeepPolicy(Policy):
    """Which units stay in a layer's cache, and which of them a row may see."""

    verb = "keep"
    # Whether KV heads and layers may keep the units of different tokens.
    per_head: ClassVar[bool] = False
    # Whether sums of units stay, which stand in no order and are no token's.
    keeps_sums: ClassVar[bool] = False

    @property
    def ragged(self) -> bool:
        """Whether KV heads of a layer may keep different numbers of units."""
        return False

    @property
    def compact(self) -> bool:
        """Whether rope positions are places among what is kept, so that prompts may exceed the model's positions."""
        return False

    @property
    def score(self) -> Score | None:
        """What units are ranked by when some are evicted, in the layers that hold them until then; None: by nothing."""
        return None

    def pattern(self, layer: LayerContext) -> All:
        """What rows see in a layer, and what leaves it by itself."""
        return ALL

    def next_eviction(self, known: int, prompt: int) -> int | None:
        """After how many tokens, more than `known`, units are next evicted in the layers that hold them; None: never.

        No step goes across it, so that what is kept does not depend on how the tokens arrive.
        """
        return None

    def voting_from(self, first: int, prompt: int) -> int | None:
        """From which position on rows vote, by `Score.voters`; None: what they say would change nothing.

        first: the position of the first of some rows before the same eviction.
        """
        return None

    def repeats(self, ids: list[int], services: Services) -> tuple[Repeat, ...]:
        """By which rows a prompt is read once more when its first eviction is due, before it; none: it is not.

        The chunks, in their order, are all tokens up to that eviction, some of the prompt being left. Of the rows
        nothing stays but what scores are made of. ids: the prompt's, as the model sees it.
        """
        return ()

    def repeated(self, prompt: int) -> int:
        """The most rows of one such chunk; a closed formula."""
        return 0

    def positions_read(self, prompt: int) -> int:
        """How many places in a text a prompt takes, those of such a chunk behind it among them."""
        if not (rows := self.repeated(prompt)):
            return prompt
        return (self.next_eviction(0, prompt) or prompt) + rows

    def merger(self, services: Services) -> Merger | None:
        """What `select` makes sums of units by, for a sequence; None: what is not kept is gone."""
        return None

    def select(self, cache: "LayerCache", moment: Moment) -> Tensor | Sequence[Tensor] | Sums | None:
        """Which units stay when some are evicted: [kept] or [kv_heads, kept] index of the live ones, ascending.

        Where `ragged`, [kept] for each KV head. Sums: some of them, and sums of others, by weights. cache: their scores
        and positions, keys and values; not to be changed. None: all of them.
        """
        return None

    def select_all(self, caches: "Sequence[LayerCache]", prompt: int) -> Sequence[Sequence[Tensor]] | None:
        """The same where it is chosen over layers, too: of each of those that hold units until then, of a prompt of so
        many tokens. Asked first; None: each layer is asked by itself."""
        return None

    def bound(self, prompt: int, new: int, layer: LayerContext) -> int | None:
        """The most units per KV head that a layer which holds them until they are evicted ever has; None: no bound.

        prompt, new: tokens. Where heads have different numbers of them, the mean over the heads.
        """
        return None

    def longest(self, prompt: int, new: int, layer: LayerContext, kv_heads: int) -> int | None:
        """The same of the head that has most."""
        return self.bound(prompt, new, layer)
