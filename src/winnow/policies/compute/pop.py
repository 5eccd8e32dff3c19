"""POP: the prompt stops at layer K, and the layers above get its units from the hidden states there."""

from dataclasses import dataclass
from typing import ClassVar

from winnow.policies.base import ModelShape, Services
from winnow.policies.compute.base import Deep, LayerTokens
from winnow.policies.compute.cutoff import ShallowPrefill
from winnow.policies.compute.gates import Gate, Projection


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

    def gate(self, shape: ModelShape) -> Gate:
        first = self.cut(shape)
        upper = range(first, shape.layers)
        return Gate(first, fills={layer: Projection((layer,), layer, layer, all_rows=False) for layer in upper})

    def full_depth(self, ids: list[int], services: Services) -> Deep:
        """The last prompt token."""
        return Deep((), len(ids) - 1, len(ids))

    def prefix_stable(self, n: int, deep: Deep) -> int:
        """All but the last prompt token and new ones, whose units above are of their own rows."""
        return min(n, deep.start)

    def layer_tokens(self, shape: ModelShape, prompt: int, deep: Deep | None = None) -> LayerTokens:
        rows = [prompt if layer < self.cut(shape) else 1 for layer in range(shape.layers)]
        return LayerTokens(rows, [prompt] * shape.layers)
