"""Static pruning: the first layers rank the prompt once, and what ranks low is gone for good."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal

import torch
from torch import Tensor

from winnow.parameters import Count, Natural, Share, Where
from winnow.policies.base import ModelShape
from winnow.policies.compute.base import ComputePolicy, Deep, Entrance, LayerTokens
from winnow.policies.compute.gates import Gate
from winnow.policies.compute.nearby import POOLED, best_nearby, check_kernel
from winnow.policies.compute.schedule import first_layer, rows_per_layer, survivors


@dataclass(frozen=True)
class StaticPrune(ComputePolicy):
    """Prune the prompt once, by the attention of the first layers; nothing comes back.

    keep: share of the prompt tokens before the last that go on, (0, 1]; rounded up, at least one.
    layers: how many of the first layers compute the whole prompt and rank it, 1 to one less than the model has. None: a
        quarter of them, or up to the first that finds what was said before where that is higher (measured, see
        `winnow.engine.depth`); the last of them sees the whole prompt where any does.
    kernel: tokens that the ranking is pooled over, an odd count: a token has the rank of the best of itself and of its
        neighbours before the last token. 1: none. before: how many share the rank of one that they stand before, at
        most half; the others stand behind it, as what is asked for follows the words that a question finds.
    voters: last prompt tokens whose attention ranks the others. votes: "mean": a token's rank is the attention that
        they pay it, as the mean, over these layers too; "max": the most that any of them pays it in any of these
        layers, of each query head, as the mean over heads.
    sink: first tokens, which go on before any other and count in keep: models may look there for nothing.

    On entering layer `layers` the highest ranks and the last token go on; ties go to the earlier position. The others
    are computed no further, and their units in the layers below are evicted too, so all layers hold the same tokens, at
    their original positions. Decode steps prune nothing.

    The ranking needs the last prompt token. With chunked prefill, every chunk therefore goes up to layer `layers` and
    waits there, as hidden states, which `aux_bytes` counts at their peak; the last chunk makes the choice. The result
    does not depend on the chunk size. Sliding-window layers rank what their window holds and nothing else.

    Source: a baseline of Fu et al., LazyLLM, arXiv:2407.14057, section 5. It ranks by the last prompt token alone,
    unpooled (kernel=1, voters=1, votes='mean', sink=0), and gives neither the number of layers nor the share; the mean
    over layers and the counted share are our reading.
    """

    keep: Share = 0.5
    layers: Count | None = None
    kernel: Count = 47
    before: Natural = 7
    voters: Count = 32
    votes: Literal["mean", "max"] = "max"
    sink: Natural = 4

    name = "static_prune"
    source = "arXiv:2407.14057, section 5"
    off: ClassVar = {"keep": 1.0}
    trial: ClassVar = {"keep": 0.4, "layers": 2, "kernel": 3, "voters": 5}
    matters: ClassVar = {
        "before": POOLED,
        "votes": Where("voters or layers above 1", lambda policy: policy.voters > 1 or policy.layers != 1),
    }

    def check(self) -> None:
        check_kernel(self)

    def validate(self, shape: ModelShape) -> None:
        if self.keep == 1:
            return
        last = shape.layers - 1
        self.require(last >= 1, f"a model of {shape.layers} layers has no layer to prune at; use another policy")
        self.require(
            self.layers is None or self.layers <= last,
            f"layers={self.layers} leaves none of the model's {shape.layers} layers to prune; use layers=1 to {last}",
        )

    @property
    def goes_by_depth(self) -> bool:
        return self.layers is None and self.keep < 1

    def gates(self, shape: ModelShape) -> tuple[Gate, ...]:
        """The layer after those that rank."""
        if self.keep == 1:
            return ()
        layer = self._layer(shape)
        gate = Gate(
            layer,
            rank_by=tuple(range(layer)),
            voters=self.voters,
            peaks=self.votes == "max",
            waits=True,
            stopped="evicted",
        )
        return (gate,)

    def layer_tokens(self, shape: ModelShape, prompt: int, deep: Deep | None = None) -> LayerTokens:
        stages = (self._layer(shape),) if self.keep < 1 else ()
        rows = rows_per_layer(prompt, shape.layers, stages, (self.keep,))
        return LayerTokens(rows, rows)

    def choose(self, gate: Gate, entrance: Entrance) -> Tensor:
        candidates = entrance.visible < entrance.prompt - 1
        told = entrance.strongest if self.votes == "max" else torch.stack(list(entrance.signals)).mean(0)
        votes = best_nearby(told, candidates, self.kernel, self.before)
        votes = votes.masked_fill(entrance.visible < self.sink, math.inf)
        ranked = votes.masked_fill(~candidates, -math.inf).sort(descending=True, stable=True).indices
        going = ~candidates
        going[ranked[: survivors(int(candidates.sum()), self.keep)]] = True
        return going.nonzero().flatten()

    def prefix_stable(self, n: int, deep: Deep) -> int:
        """All but the last prompt tokens, by which the others are chosen among; what waits for them is held as well."""
        return max(0, min(n, deep.prompt - self.voters))

    def _layer(self, shape: ModelShape) -> int:
        return first_layer(shape, Fraction(1, 4)) if self.layers is None else self.layers
