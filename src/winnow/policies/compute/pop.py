"""POP: the prompt stops at layer K, and the layers above get its units from the hidden states there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from winnow.policies.base import ModelShape, Scorer
from winnow.policies.compute.base import Deep, Projection
from winnow.policies.compute.cutoff import ShallowPrefill


@dataclass(frozen=True)
class Pop(ShallowPrefill):
    """Prompt tokens stop at layer K, but every layer above gets a unit of each: its own projections of x^K.

    cutoff: K, as in `speed`: a count of layers from 1 on, or a share of them up to 1.0.

    A layer's input norm and its key and value projections are applied to the hidden states with which prompt tokens
    entered layer K; only the last prompt token, which gives the first new token, and the new tokens go through the
    layers above. Saves compute in prefill; caches and decode steps are those of full attention.

    Source: POP, arXiv:2602.03295, as far as its abstract says. The paper picks the layers to skip by an estimate of
    their importance; here they are the last ones, to compare with `speed` at the same K.
    """

    name = "pop"
    source = "arXiv:2602.03295"
    trial: ClassVar = {"cutoff": 2}

    def projections(self, shape: ModelShape) -> Mapping[int, Projection]:
        upper = range(self.cut(shape), shape.layers)
        return {layer: Projection((layer,), norm=layer, holder=layer, all_rows=False) for layer in upper}

    def deep(self, ids: list[int], scorer: Scorer) -> Deep:
        """The last prompt token."""
        return Deep((), len(ids) - 1, len(ids))

    def prompt_rows(self, shape: ModelShape, prompt: int, deep: Deep | None = None) -> list[int]:
        return [prompt if layer < self.cut(shape) else 1 for layer in range(shape.layers)]

    def prompt_units(self, shape: ModelShape, prompt: int, deep: Deep | None = None) -> list[int]:
        return [prompt] * shape.layers
