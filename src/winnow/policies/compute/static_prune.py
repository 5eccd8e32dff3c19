"""Static pruning: the first layers rank the prompt once, and what ranks low is gone for good."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from winnow.parameters import Count, Share
from winnow.policies.base import ModelShape
from winnow.policies.compute.base import ComputePolicy, Deep, Entrance, LayerTokens
from winnow.policies.compute.gates import Gate
from winnow.policies.compute.nearby import best_nearby, check_kernel
from winnow.policies.compute.schedule import rows_per_layer, survivors


@dataclass(frozen=True)
class StaticPrune(ComputePolicy):
    """Prune the prompt once, by the attention of the first layers; nothing comes back.

    keep: share of the prompt tokens before the last that go on, (0, 1]; rounded up, at least one.
    layers: how many of the first layers compute the whole prompt and rank it, 1 to one less than the model has.
    kernel: tokens that the ranking is pooled over, an odd count: a token has the rank of the best of itself and as many
        neighbours on either side before the last token. 1: none.

    A prompt token's rank is the attention that the last prompt token pays it, as the mean over query heads and over
    these layers. On entering layer `layers` the highest ranks and the last token go on; ties go to the earlier
    position. The others are computed no further, and their units in the layers below are evicted too, so all layers
    hold the same tokens, at their original positions. Decode steps prune nothing.

    The ranking needs the last prompt token. With chunked prefill, every chunk therefore goes up to layer `layers` and
    waits there, as hidden states, which `aux_bytes` counts at their peak; the last chunk makes the choice. The result
    does not depend on the chunk size. Sliding-window layers rank what their window holds and nothing else.

    Source: a baseline of Fu et al., LazyLLM, arXiv:2407.14057, section 5. The paper gives neither the number of layers
    nor the share; the mean over layers and the counted share are our reading.
    """

    keep: Share = 0.5
    layers: int = 4
    kernel: Count = 1

    name = "static_prune"
    source = "arXiv:2407.14057, section 5"
    off: ClassVar = {"keep": 1.0}
    trial: ClassVar = {"keep": 0.4, "layers": 2}

    def check(self) -> None:
        self.require(self.layers >= 1, f"layers={self.layers}: pruning needs at least one layer to rank tokens by")
        check_kernel(self)

    def validate(self, shape: ModelShape) -> None:
        if self.keep == 1:
            return
        last = shape.layers - 1
        self.require(last >= 1, f"a model of {shape.layers} layers has no layer to prune at; use another policy")
        self.require(
            self.layers <= last,
            f"layers={self.layers} leaves none of the model's {shape.layers} layers to prune; use layers=1 to {last}",
        )

    def gates(self, shape: ModelShape) -> tuple[Gate, ...]:
        """The layer after those that rank."""
        gate = Gate(self.layers, rank_by=tuple(range(self.layers)), waits=True, stopped="evicted")
        return (gate,) if self.keep < 1 else ()

    def layer_tokens(self, shape: ModelShape, prompt: int, deep: Deep | None = None) -> LayerTokens:
        rows = rows_per_layer(prompt, shape.layers, (self.layers,), (self.keep,))
        return LayerTokens(rows, rows)

    def choose(self, gate: Gate, entrance: Entrance) -> Tensor:
        candidates = entrance.visible < entrance.prompt - 1
        votes = best_nearby(torch.stack(list(entrance.signals)).mean(0), candidates, self.kernel)
        ranked = votes.masked_fill(~candidates, -math.inf).sort(descending=True, stable=True).indices
        going = ~candidates
        going[ranked[: survivors(int(candidates.sum()), self.keep)]] = True
        return going.nonzero().flatten()

    def prefix_stable(self, n: int, deep: Deep) -> int:
        """All but the last prompt token, by which the others are chosen among; what waits for it is held as well."""
        return min(n, deep.prompt - 1)
