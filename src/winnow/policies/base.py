"""What every policy is: a frozen dataclass of parameters that answers one of the four questions of a plan.

    compute   which tokens go on at a layer                 `ComputePolicy.choose`
    keep      which units stay, and which a row may see     `KeepPolicy.spans`, `KeepPolicy.evict`
    read      which of the kept units a decode step reads   `ReadPolicy.spans`
    store     how a unit is held                            `StorePolicy.slab`

A policy holds no state and touches no model: state is an argument (`LayerCache`), a decision is the return value. The
runtime asks the four questions at fixed places and never asks which policy it has.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor

from winnow.errors import PlanError
from winnow.parameters import wrong_type

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from winnow.cache.layer import LayerCache, Slab

VERBS = ("compute", "keep", "read", "store")


@dataclasses.dataclass(frozen=True)
class ModelShape:
    """The facts about a model that a plan is validated against and that closed formulas use; counts, and bytes."""

    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    mlp: int  # width of the MLP; of a mixture, of the experts that a token goes through
    vocab: int
    windows: tuple[int | None, ...]  # per layer: the sliding window in tokens, None for full attention
    rotations: tuple[str | None, ...]  # per layer: the kind of its rotation; equal where keys are rotated alike
    max_positions: int
    element_bytes: int

    @property
    def unit_bytes(self) -> int:
        """Bytes of one cache unit: the key and the value of one token in one layer and one KV head."""
        return 2 * self.head_dim * self.element_bytes


@dataclasses.dataclass(frozen=True)
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


@dataclasses.dataclass(frozen=True)
class Policy:
    """Base of all policies: parameters with types and defaults, checked when the policy is made."""

    verb: ClassVar[str]
    name: ClassVar[str]
    identity: ClassVar[bool] = False  # changes nothing: what full attention does
    source: ClassVar[str] = ""  # paper and section
    # Parameters under which the policy changes nothing, and parameters that act on a few dozen tokens: the invariant
    # tests run every registered policy with both.
    off: ClassVar[Mapping[str, Any]] = {}
    trial: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if isinstance(value := getattr(self, field.name), list):
                object.__setattr__(self, field.name, tuple(value))
        if problem := wrong_type(self):
            raise PlanError(f"{self.name}: {problem}")
        self.check()

    def check(self) -> None:
        """Raise PlanError where a parameter is out of range; the types are right already."""

    def resolved(self, shape: ModelShape) -> "Policy":
        """The same policy for this model, shares turned into counts: two that do the same are equal."""
        return self

    def validate(self, shape: ModelShape) -> None:
        """Raise PlanError where this policy cannot act on a model of `shape`."""

    def require(self, condition: bool, message: str) -> None:
        """Raise PlanError with `message`, which says what to change, unless `condition` holds."""
        if not condition:
            raise PlanError(f"{self.name}: {message}")


@dataclasses.dataclass(frozen=True)
class Entrance:
    """What is known when a step of one sequence is about to enter a layer where its compute policy chooses.

    prompt: prompt tokens; known: tokens so far, the rows of this step included; decode: the phase.
    visible: [tokens] positions that this step still sees, ascending, the current token last.
    aside: [tokens] bool, which of them an earlier step has set aside here, so that to let them go on is to revive them.
    deep: positions that `ComputePolicy.deep` named, ascending.
    signals: for every layer of `ComputePolicy.signals` since the last choice, [tokens] float32, how much the current
    token attends to each, as the mean over query heads; 0 for what the layer does not see or hold; none before the
    prompt is complete. revived: tokens revived so far in this step.
    """

    layer: int
    shape: ModelShape
    prompt: int
    known: int
    decode: bool
    visible: Tensor
    aside: Tensor
    deep: Tensor
    signals: Sequence[Tensor]
    revived: int

    @property
    def prompt_complete(self) -> bool:
        """Whether the last prompt token is among the rows of this step or earlier ones."""
        return self.known >= self.prompt


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which tokens go on, and what becomes of the others.

    going: index into `Entrance.visible`, ascending; from this layer on the step sees no others. Tokens among them that
    were set aside here are computed now. aside: hidden states of rows that stop are kept, for an earlier step's choice
    to be undone; otherwise they are freed, and what earlier steps set aside here too. gone: the tokens that stop are
    evicted from the layers below as well. seen_above: the tokens that stop have units in the layers above all the same
    (see `ComputePolicy.projections`), and the step goes on seeing them there.
    """

    going: Tensor
    aside: bool = False
    gone: bool = False
    seen_above: bool = False

    @classmethod
    def wait(cls, entrance: Entrance) -> "Choice":
        """Nothing goes on before the prompt is complete: the rows of this chunk are set aside until then."""
        return cls(entrance.visible.new_empty(0), aside=True)


@dataclasses.dataclass(frozen=True)
class Deep:
    """The prompt tokens that go on wherever the others stop: positions of anchors, and all from `start` on.

    start: where the decode phase begins, above all anchors; `prompt`, its length, where there are none.
    """

    anchors: tuple[int, ...]
    start: int
    prompt: int

    @classmethod
    def none(cls, prompt: int) -> "Deep":
        """No token of a prompt is named."""
        return cls((), prompt, prompt)

    @property
    def positions(self) -> tuple[int, ...]:
        """All of them, ascending."""
        return (*self.anchors, *range(self.start, self.prompt))

    def __len__(self) -> int:
        return len(self.anchors) + self.prompt - self.start


@dataclasses.dataclass(frozen=True)
class Projection:
    """Units that a layer gets from the hidden states with which rows entered an earlier one, past the layers between.

    teachers: layers whose key and value projections are averaged; norm: the layer whose input norm comes before them.
    holder: the layer that keeps the units, for several that share them. all_rows: rows that go on have no other units;
    otherwise they make their own, as usual.
    """

    teachers: tuple[int, ...]
    norm: int
    holder: int
    all_rows: bool


class Scorer(Protocol):
    """What a policy may ask about a prompt: of the plan's own language model or another one, and of the tokenizer."""

    @property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The model's tokenizer. Raises InputError where it has none."""

    @property
    def template(self) -> "PreTrainedTokenizerBase | None":
        """The model's tokenizer if it has a chat template."""

    @property
    def max_positions(self) -> int:
        """The longest text that the model takes, in tokens."""

    def surprisal(self, ids: list[int]) -> list[float]:
        """-ln P(token | the tokens before it) for every token but the first."""

    def other(self, model: str) -> "Scorer":
        """The same questions to another model: a name, a directory or a hub id. Raises ModelError."""


class ComputePolicy(Policy):
    """Which prompt tokens are computed in which layer."""

    verb = "compute"

    @property
    def revives(self) -> bool:
        """Whether tokens that stopped at a layer may go on from there in a later step."""
        return False

    @property
    def relaxed(self) -> bool:
        """Whether revived tokens see all units of earlier steps, also of later positions (but for windowed layers)."""
        return False

    @property
    def leaves_gaps(self) -> bool:
        """Whether layers may hold units whose positions do not follow each other."""
        return self.revives

    def entrances(self, shape: ModelShape) -> Collection[int]:
        """The layers at whose entrance `choose` is asked."""
        return ()

    def signals(self, shape: ModelShape, *, decode: bool) -> Collection[int]:
        """The layers in which the attention of the current token is wanted in this phase; see `Entrance.signals`."""
        return ()

    def choose(self, entrance: Entrance) -> Choice | None:
        """Who goes on; None: every visible token. The current token always does, unless the choice is to wait."""
        return None

    def prepare(self, scorer: Scorer) -> None:
        """Raise, before any work, what `shorten` would raise for want of a tokenizer or a scorer."""

    def shorten(self, ids: list[int], scorer: "Scorer") -> list[int]:
        """Index of the prompt tokens that the model gets to see at all, ascending; their positions are renumbered."""
        return list(range(len(ids)))

    def deep(self, ids: list[int], scorer: "Scorer") -> Deep:
        """The tokens of a prompt, as shortened, that go on wherever others stop; see `Entrance.deep`.

        Raises InputError where the prompt does not have them.
        """
        return Deep.none(len(ids))

    def stops_at(self, shape: ModelShape) -> int | None:
        """The layer at which all prompt tokens stop that are not `deep`, if there is one such layer.

        From there on the units of an anchor at position 0 may come from another text: it sees only itself.
        """
        return None

    def projections(self, shape: ModelShape) -> Mapping[int, Projection]:
        """Layers that get units from the rows at an entrance below them, and how."""
        return {}

    def transient(self, shape: ModelShape) -> Collection[int]:
        """Layers in which a row of the decode phase sees what they hold and itself, and leaves no unit."""
        return ()

    def prompt_rows(self, shape: ModelShape, prompt: int, deep: Deep | None = None) -> list[int]:
        """Per layer, how many of `prompt` prompt tokens, as shortened, are computed in prefill; a closed formula.

        deep: what `deep` says of the prompt; None: it names no token.
        """
        return [prompt] * shape.layers

    def prompt_units(self, shape: ModelShape, prompt: int, deep: Deep | None = None) -> list[int]:
        """Per layer, of how many prompt tokens it holds units after prefill, if nothing is evicted."""
        return self.prompt_rows(shape, prompt, deep)


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


class ReadPolicy(Policy):
    """Which of the kept units a decode step reads."""

    verb = "read"

    def spans(self, cache: "LayerCache", spans: list[Span]) -> list[Span]:
        """The part of `spans` that this decode step reads."""
        return spans


class StorePolicy(Policy):
    """How units are held in memory."""

    verb = "store"

    def slab(self, kv_heads: int, capacity: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> "Slab":
        """Memory for `capacity` units per KV head."""
        raise TypeError(f"{type(self).__name__} has to say how it stores units")


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
