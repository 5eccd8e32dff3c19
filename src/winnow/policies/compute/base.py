"""What every compute policy is, and what it is told and answers."""

import dataclasses
import functools
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from winnow.policies.base import ModelShape, Policy, Services
from winnow.policies.compute.gates import Gate


@dataclasses.dataclass(frozen=True)
class Entrance:
    """What is known when a step of one sequence is about to enter a layer where its compute policy chooses.

    prompt: prompt tokens; known: tokens so far, the rows of this step included; decode: the phase.
    visible: [tokens] positions that this step still sees, ascending, the current token last.
    aside: [tokens] bool, which of them wait here, so that to let them go on is to compute them from here on.
    deep: positions that `ComputePolicy.full_depth` named, ascending.
    signals: for every layer of `Gate.asks`, [tokens] float32, how much the current token, or the `Gate.voters`,
    attend to each, as the mean over query heads; 0 for what the layer does not see or hold; none before the prompt is
    complete.
    revived: tokens revived so far in this step.
    """

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
    def strongest(self) -> Tensor:
        """[tokens], of each the greatest of its signals, of which there are some."""
        return functools.reduce(torch.maximum, self.signals)


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

    def among(self, kept: Sequence[int]) -> "Deep":
        """The same tokens of a prompt of which only those at `kept`, ascending, are left: at their new positions."""
        places = {position: place for place, position in enumerate(kept)}
        anchors = tuple(places[position] for position in self.anchors if position in places)
        return Deep(anchors, bisect_left(kept, self.start), len(kept))

    def __len__(self) -> int:
        return len(self.anchors) + self.prompt - self.start


class LayerTokens(NamedTuple):
    """Per layer, how many tokens of a prompt it computes in prefill, and of how many it holds units after it."""

    rows: list[int]
    units: list[int]


class ComputePolicy(Policy):
    """Which prompt tokens are computed in which layer."""

    verb = "compute"

    @property
    def goes_by_depth(self) -> bool:
        """Whether its layers depend on `ModelShape.finds`, which is measured before such a plan runs."""
        return False

    def gates(self, shape: ModelShape) -> tuple[Gate, ...]:
        """The layers at whose entrance tokens may stop, ascending."""
        return ()

    def choose(self, gate: Gate, entrance: Entrance) -> Tensor | None:
        """Who goes on, as an ascending index into `Entrance.visible`; None: everyone. The current token always does.

        From the gate on the step sees no others. Tokens that wait there and are chosen are computed now. Here: those
        that `full_depth` names.
        """
        return torch.searchsorted(entrance.visible, entrance.deep[entrance.deep < entrance.known])

    def full_depth(self, ids: list[int], services: Services) -> Deep:
        """The tokens of a prompt that go through all layers, whatever becomes of the others.

        ids: the prompt as it was given, of which a prompt policy may leave some out. The units of an anchor at
        position 0 may come from another text, since it sees only itself.
        Raises InputError where the prompt does not have such tokens.
        """
        return Deep.none(len(ids))

    def layer_tokens(self, shape: ModelShape, prompt: int, deep: Deep | None = None) -> LayerTokens:
        """What becomes of `prompt` tokens; a closed formula. deep: what `full_depth` says of them; None: no token."""
        return LayerTokens([prompt] * shape.layers, [prompt] * shape.layers)

    def prepare(self, services: Services, ids: list[int] | None) -> None:
        """Raise InputError where a prompt cannot be computed this way; None: any prompt."""
        if ids is not None:
            self.full_depth(ids, services)
