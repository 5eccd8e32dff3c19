"""What every policy is: a frozen dataclass of parameters that answers one of the six questions of a plan.

    prompt    which prompt tokens the model sees            `PromptPolicy.shorten`
    compute   which tokens go on at a layer                 `ComputePolicy.gates`, `ComputePolicy.choose`
    keep      which units stay, and which a row may see     `KeepPolicy.pattern`, `KeepPolicy.select`
    prefill   which of the kept units a prompt's rows read  `PrefillPolicy.chooser`
    read      which of the kept units a decode step reads   `Reader.select`
    store     how a unit is held                            `StorePolicy.slabs`, `StorePolicy.settled`

A policy holds no state and touches no model: state is an argument (`LayerCache`), a decision is the return value; what
a read policy remembers of a sequence is a `Reader`. The runtime
asks these questions at fixed places and never asks which policy it has.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

from winnow.cache.memory import Slab
from winnow.errors import PlanError
from winnow.parameters import Where, idle, too_large, wrong_type

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from winnow.cache.settled import Rope, SettledSlab
    from winnow.policies.compute.base import Deep
    from winnow.policies.keep.base import Merger, UnitScorer
    from winnow.policies.prefill.minference import Pattern
    from winnow.policies.read.base import TokenIndex

VERBS = ("prompt", "compute", "keep", "prefill", "read", "store")


@dataclasses.dataclass(frozen=True)
class LayerContext:
    """A layer to a policy. index: from 0 on, of `layers`; window: its sliding window in tokens, None for none;
    kv_heads: how many it has; windows: those of all layers, None where no layer has one."""

    index: int
    layers: int
    window: int | None
    kv_heads: int = 1
    windows: tuple[int | None, ...] | None = None


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
    # The first layer whose attention finds what was said before, measured on its weights (`engine.depth`); None: not
    # measured, or there is none.
    finds: int | None = None

    @cached_property
    def contexts(self) -> tuple[LayerContext, ...]:
        """Per layer."""
        return tuple(
            LayerContext(layer, self.layers, window, self.kv_heads, self.windows)
            for layer, window in enumerate(self.windows)
        )

    @property
    def unit_bytes(self) -> int:
        """Bytes of one cache unit: the key and the value of one token in one layer and one KV head."""
        return 2 * self.head_dim * self.element_bytes


@dataclasses.dataclass(frozen=True)
class Policy:
    """Base of all policies: parameters with types and defaults, checked when the policy is made."""

    verb: ClassVar[str]
    name: ClassVar[str]
    identity: ClassVar[bool] = False  # changes nothing: what full attention does
    source: ClassVar[str] = ""  # paper and section
    # Parameters under which the policy changes nothing (None: there are none), and parameters that act on a few dozen
    # tokens: the invariant tests run every registered policy with both.
    off: ClassVar[Mapping[str, Any] | None] = {}
    trial: ClassVar[Mapping[str, Any]] = {}
    # Parameters that change nothing under some settings of the others, and where they do: elsewhere they are refused.
    # Not those of a policy that is turned off as a whole: a sweep may come past `keep=1.0`.
    matters: ClassVar[Mapping[str, Where]] = {}
    # Parameters that name a directory or a model, to be read or loaded: a server takes them from no client.
    loads: ClassVar[tuple[str, ...]] = ()
    # What it takes of a machine beside the rows and bytes that an engine counts, in words: of a server's clients only
    # those may ask for it whose operator has allowed the plan.
    takes: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if isinstance(value := getattr(self, field.name), list):
                object.__setattr__(self, field.name, tuple(value))
        if problem := wrong_type(self) or too_large(self):
            raise PlanError(f"{self.name}: {problem}")
        self.check()
        if problem := idle(self, self.matters):
            raise PlanError(f"{self.name}: {problem}")

    def check(self) -> None:
        """Raise PlanError where a parameter is out of range; the types are right already."""

    def resolved(self, shape: ModelShape) -> "Policy":
        """The same policy for this model, shares turned into counts: two that do the same are equal."""
        return self

    def validate(self, shape: ModelShape) -> None:
        """Raise PlanError where this policy cannot act on a model of `shape`."""

    def prepare(self, services: "Services", ids: list[int] | None) -> None:
        """Raise, before any work, what keeps it from acting on a prompt; ids None: on any prompt.

        Raises InputError or PlanError, and ModelError where it lacks a tokenizer, heads or another model.
        """

    def prefix_stable(self, n: int, deep: "Deep") -> int:
        """Of the first `n` tokens of a sequence, how many a longer prompt that begins with them may go on from.

        After so many of them this policy has decided nothing that it would decide otherwise, had they been the first of
        any longer prompt: as far as it goes, rows and units are those that the longer prompt would have, and what is
        still to be decided may go by that prompt. Units are then equal but for rounding, as in other company, and the
        logits that follow too; of a deterministic model, in the same chunks, to the bit.

        n: more than the prompt where new tokens are meant as well, whose rows were decode steps. deep: what the compute
        policy says of the sequence's own prompt, its length among it. Asked of what has been computed and of the prompt
        that is to go on from it: both have to agree. Here: nothing may be taken over.
        """
        return 0

    def require(self, condition: bool, message: str) -> None:
        """Raise PlanError with `message`, which says what to change, unless `condition` holds."""
        if not condition:
            raise PlanError(f"{self.name}: {message}")


class Services(Protocol):
    """What a policy may ask about a prompt: of the plan's own language model or another one, and of the tokenizer."""

    @property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The model's tokenizer. Raises InputError where it has none."""

    @property
    def template(self) -> "PreTrainedTokenizerBase | None":
        """The model's tokenizer if it has a chat template."""

    @property
    def shape(self) -> ModelShape:
        """The model's."""

    @property
    def device(self) -> torch.device:
        """The model's."""

    def surprisal(self, ids: list[int]) -> list[float]:
        """-ln P(token | the tokens before it) for every token but the first."""

    def retaining_heads(self, source: str | None, policy: str) -> "UnitScorer":
        """Heads that say what a policy of this name keeps units by: in a directory, or the model's own. Raises
        ModelError where there are none, or others."""

    def convolutions(self, source: str | None) -> "Merger":
        """LoCoCo's convolutions for the model: in a directory, or the LLM's own. Raises ModelError where there are
        none."""

    def indexers(self, source: str | None) -> "TokenIndex":
        """Indexers of the model: in a directory, or the LLM's own. Raises ModelError where there are none."""

    def head_patterns(self, source: str) -> "list[list[Pattern]]":
        """Of every layer and query head what it reads of a prompt (`minference`), from a directory. Raises ModelError
        where there are none, or another model's."""

    def head_gates(self, source: str) -> None:
        """Raise ModelError unless a directory has gates of the model's KV heads (`duo`)."""

    def random_heads(self, width: int, seed: int) -> "UnitScorer":
        """Untrained heads, for comparison."""

    def other(self, model: str) -> "Services":
        """The same questions to another model: a name, a directory or a hub id. Raises ModelError."""


class StorePolicy(Policy):
    """How units are held in memory.

    residual: the newest units of a layer that are never held in another form than they came in, at least. group: units
    that come to be so together.
    """

    verb = "store"
    residual: int = 0
    group: int = 1
    # Whether units lie in files, whose room is taken at the start for all that may come.
    in_files: ClassVar[bool] = False

    def slabs(self, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> "Callable[[int], Slab]":
        """What makes room for so many units per KV head, as they come, of one sequence and its forks."""
        return lambda capacity: Slab(kv_heads, capacity, head_dim, dtype, device)

    def in_memory(self, nbytes: int) -> int:
        """Of so many bytes of units of a sequence, how many are in memory at once, at most."""
        return nbytes

    def next_change(self, known: int, prompt: int) -> int | None:
        """After how many tokens units are next brought into the form in which they stay; None: never."""
        return None

    def stays(self, prompt: int) -> int:
        """How many units of a KV head that have left a layer by themselves may still be there, at most."""
        return 0

    def settled(
        self, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device, rope: "Rope | None"
    ) -> "SettledSlab":
        """An empty slab of the form in which units of a layer stay; asked where there is a next change.

        rope: how the layer's keys are rotated when they come; None: not at all.
        """
        raise TypeError(f"{type(self).__name__} has to say how it holds units that stay")

    def nbytes(self, units: int, shape: ModelShape) -> int:
        """The most bytes that so many units of one KV head, of which none is evicted by choice, take at any time."""
        return units * shape.unit_bytes
