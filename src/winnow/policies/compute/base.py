"""What every compute policy is, and what it is told and answers."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from winnow.policies.base import ModelShape, Policy, Scorer


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
    def waits(self) -> bool:
        """Whether tokens wait at a layer until the prompt is complete, since its last token decides what goes on."""
        return self.revives

    @property
    def drops_below(self) -> bool:
        """Whether tokens that stop are evicted from the layers below, too."""
        return False

    def entrances(self, shape: ModelShape) -> Collection[int]:
        """The layers at whose entrance `choose` is asked."""
        return ()

    def signals(self, shape: ModelShape, *, decode: bool) -> Collection[int]:
        """The layers in which the attention of the current token is wanted in this phase; see `Entrance.signals`."""
        return ()

    def choose(self, entrance: Entrance) -> Choice | None:
        """Who goes on; None: every visible token. The current token always does, unless the choice is to wait."""
        return None

    def check_prompt(self, prompt: int) -> None:
        """Raise InputError where a prompt of so many tokens cannot be computed this way."""

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
