"""POP: the prompt stops at layer K, and the layers above get its units from the hidden states there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from winnow.policies.base import Choice, ComputePolicy, Entrance, ModelShape, Projection, Scorer
from winnow.policies.compute.cutoff import cut, cutoff_problem


@dataclass(frozen=True)
class Pop(ComputePolicy):
    """Prompt tokens stop at layer K, but every layer above gets a unit of each: its own projections of x^K.

    cutoff: K, as in `speed`: a count of layers from 1 on, or a share of them up to 1.0.

    A layer's input norm and its key and value projections are applied to the hidden states with which prompt tokens
    entered layer K; only the last prompt token, which gives the first new token, and the new tokens go through the
    layers above. Saves compute in prefill; caches and decode steps are those of full attention.

    Source: POP, arXiv:2602.03295, as far as its abstract says. The paper picks the layers to skip by an estimate of
    their importance; here they are the last ones, to compare with `speed` at the same K.
    """

    cutoff: int | float = 0.75

    name = "pop"
    source = "arXiv:2602.03295"
    off: ClassVar = {"cutoff": 1.0}
    trial: ClassVar = {"cutoff": 2}

    def check(self) -> None:
        self.require(not (problem := cutoff_problem(self.cutoff)), problem or "")

    def validate(self, shape: ModelShape) -> None:
        self.require(
            self.cut(shape) <= shape.layers,
            f"cutoff={self.cutoff} is above the model's {shape.layers} layers; use 1 to {shape.layers}",
        )

    def cut(self, shape: ModelShape) -> int:
        """K: how many layers compute the prompt."""
        return cut(self.cutoff, shape)

    def entrances(self, shape: ModelShape) -> tuple[int, ...]:
        """Layer K, unless it is above the last."""
        return (self.cut(shape),) if self.cut(shape) < shape.layers else ()

    def projections(self, shape: ModelShape) -> Mapping[int, Projection]:
        upper = range(self.cut(shape), shape.layers)
        return {layer: Projection((layer,), norm=layer, holder=layer, all_rows=False) for layer in upper}

    def deep(self, ids: list[int], scorer: Scorer) -> list[int]:
        """The last prompt token."""
        return [len(ids) - 1]

    def choose(self, entrance: Entrance) -> Choice | None:
        if entrance.decode:
            return None
        return Choice(entrance.deep[entrance.deep < entrance.known], seen_above=True)

    def prompt_rows(self, shape: ModelShape, prompt: int, deep: Sequence[int] = ()) -> list[int]:
        return [prompt if layer < self.cut(shape) else len(deep) for layer in range(shape.layers)]

    def prompt_units(self, shape: ModelShape, prompt: int, deep: Sequence[int] = ()) -> list[int]:
        return [prompt] * shape.layers
