"""FastKV: from a layer on only the prompt tokens go on that are attended to most, for good."""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, max_pool1d, pad

from winnow.parameters import Count, Natural, Share, Where
from winnow.policies.base import ModelShape
from winnow.policies.compute.base import ComputePolicy, Deep, Entrance, LayerTokens
from winnow.policies.compute.gates import Gate
from winnow.policies.compute.nearby import POOLED, check_kernel, sides
from winnow.policies.compute.schedule import RankLayers, first_layer, ranking, survivors


@dataclass(frozen=True)
class FastKV(ComputePolicy):
    """Compute the whole prompt up to a layer; above it go on the tokens most attended to, and those of the last window.

    keep: share of the prompt tokens that go on, (0, 1]; rounded up, the window's among them.
    layer: the first layer that does not see them all, 1 to the model's last; None: half of the layers, or where it is
        higher the layer above the first that finds what was said before (measured, see `winnow.engine.depth`), or next
        to that one above a layer that sees the whole prompt. Lower, less is computed: `winnow diagnose needles` says
        how low a question finds what it asks for.
    window: last prompt tokens, which always go on; at least one.
    kernel: tokens that votes are pooled over, an odd count. 1: none. before: how many of them share the vote of one
        that they stand before, at most half; the others stand behind it, as what is asked for follows the words that a
        question finds. pooling: "avg": the mean of their votes, 0 counting for those before the first and from the
        window on; "max": the best of them, so that what stands beside a token that is found goes on with it.
    voters: last prompt tokens that vote. votes: "mean": each head's vote for a token is the attention that they pay it,
        as the mean; "max": the most that any of them pays it, as for what one word of a question asks for.
    rank_layers: "all": a token has its best vote of all layers below `layer`, so that it matters little which of them
        finds; "last": that of layer `layer` - 1.
    sink: first prompt tokens, which always go on: models may look there for nothing, above this layer.

    A layer's vote for a token is the mean over query heads. Ties go to the earlier position. The others have units in
    the layers below and none above, where what goes on keeps its position in the text; nothing comes back, and decode
    steps choose nothing. With chunked prefill every chunk goes up to the layer and waits there, as hidden states, until
    the prompt is complete; the result does not depend on the chunk size. A layer with a sliding window ranks what its
    window holds and nothing else.

    The authors add up the votes of one layer for the 8 rows of the window, over 7 tokens: kernel=7, pooling='avg',
    voters=8, votes='mean', rank_layers='last', sink=0. They compress the units of every layer, too, by the votes of the
    same window: join `snapkv(budget=512, window=8, kernel=7, pooling='avg')` for that, whose window must not be larger
    than this one, or any policy that scores units by projections, keys or values.

    Source: Jo et al., FastKV, arXiv:2502.01068; the authors' code, whose layer (15 of 32 is the last with all tokens),
    share and window are the defaults.
    """

    keep: Share = 0.2
    layer: Count | None = None
    window: Count = 8
    kernel: Count = 47
    before: Natural = 7
    pooling: Literal["avg", "max"] = "max"
    voters: Count = 32
    votes: Literal["mean", "max"] = "max"
    sink: Natural = 4
    rank_layers: RankLayers = "all"

    name = "fastkv"
    source = "arXiv:2502.01068"
    off: ClassVar = {"keep": 1.0}
    trial: ClassVar = {"keep": 0.4, "layer": 2, "window": 3, "kernel": 3, "voters": 5}
    matters: ClassVar = {
        "pooling": POOLED,
        "before": POOLED,
        "votes": Where("voters above 1", lambda policy: policy.voters > 1),
        "rank_layers": Where("a layer above 1", lambda policy: policy.layer != 1),
    }

    def check(self) -> None:
        check_kernel(self)

    def validate(self, shape: ModelShape) -> None:
        last = shape.layers - 1
        self.require(self.keep == 1 or last >= 1, f"a model of {shape.layers} layers has none to stop at; leave it out")
        self.require(
            self.layer is None or self.layer <= last,
            f"layer={self.layer} leaves none of the model's {shape.layers} layers to stop at; use layer=1 to {last}",
        )

    @property
    def goes_by_depth(self) -> bool:
        return self.layer is None and self.keep < 1

    def gates(self, shape: ModelShape) -> tuple[Gate, ...]:
        if self.keep == 1:
            return ()
        layer = self._layer(shape)
        peaks = self.votes == "max"
        return (
            Gate(layer, ranking(layer, self.rank_layers), self.voters, peaks=peaks, waits=True, newest=self.window),
        )

    def layer_tokens(self, shape: ModelShape, prompt: int, deep: Deep | None = None) -> LayerTokens:
        below = self._layer(shape) if self.keep < 1 else shape.layers
        rows = [prompt] * below + [survivors(prompt, self.keep, self.window)] * (shape.layers - below)
        return LayerTokens(rows, rows)

    def choose(self, gate: Gate, entrance: Entrance) -> Tensor | None:
        votes = entrance.strongest
        tokens = len(votes)
        others = survivors(tokens, self.keep, self.window) - self.window
        if others >= tokens - self.window:
            return None
        ranked = votes[: -self.window]
        ahead, behind = sides(self.kernel, self.before, len(ranked))
        pool, beyond = (avg_pool1d, 0.0) if self.pooling == "avg" else (max_pool1d, -torch.inf)
        pooled = pool(pad(ranked, (behind, ahead), value=beyond)[None], ahead + behind + 1, stride=1)[0]
        pooled[: self.sink] = torch.inf
        chosen = pooled.sort(descending=True, stable=True).indices[:others]
        return torch.cat((chosen.sort().values, torch.arange(tokens - self.window, tokens, device=votes.device)))

    def _layer(self, shape: ModelShape) -> int:
        return first_layer(shape, Fraction(1, 2)) if self.layer is None else self.layer
