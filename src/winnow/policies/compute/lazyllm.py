"""LazyLLM: prompt tokens that matter little to the next token stop on the way up, and come back when they matter."""

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, Literal

import torch
from torch import Tensor

from winnow.parameters import Count, Natural, Where
from winnow.policies.base import ModelShape
from winnow.policies.compute.base import ComputePolicy, Deep, Entrance, LayerTokens
from winnow.policies.compute.gates import Gate
from winnow.policies.compute.nearby import best_nearby, check_kernel
from winnow.policies.compute.schedule import (
    CUMULATIVE,
    RankLayers,
    last_layer,
    preset_layers,
    ranking,
    rows_per_layer,
    survivors,
)


@dataclass(frozen=True)
class LazyLLM(ComputePolicy):
    """Drop prompt tokens layer by layer by the attention they get; revive them when a later step needs them.

    layers: pruning layers, ascending, 1 to the model's last. On entering one, the tokens still active are ranked by the
        attention that is paid them below, as the mean over query heads. None: a quarter, half and three quarters into
        the model; where a quarter of the layers do not find what was said before, the first above one that does
        (measured, see `winnow.engine.depth`), the others at thirds of the layers from there on.
    keep: share of the survivors that go on at each pruning layer, (0, 1]; one number serves all. None: as many as are
        0.45, 0.4 and 0.35 of the prompt.
    cumulative: instead of keep, the same as shares of the whole prompt, which may not grow.
    revive: what a revived token sees besides the tokens computed with it, of those that the step still sees: "relaxed",
        all computed in earlier steps, also at later positions, as in the paper; "causal", those at earlier positions;
        "never", nothing is revived: the choice of prefill stays, and nothing stays parked after it (a control).
    keep_decode: keep in decode steps, of what the step sees; None: as in prefill, as in the paper. At 1.0 a step reads
        all that has been computed, and nothing has to be gathered.
    prune_generated: rank generated tokens too; otherwise they always go on.
    sink: first prompt tokens, which go on before any other and count in keep: models may look there for nothing.
    max_revive: at most so many tokens revived per decode step, the most attended; None: all that are chosen, as in the
        paper. The others stay parked, are left out of the step, and may be chosen in the next. A pruning layer takes
        what is left of them, halved for each pruning layer above: with three layers 3 are 0, 1 and 2. What got far
        matters more when it stops, and is computed in fewer layers.
    kernel: tokens that the ranking is pooled over, an odd count: a token has the rank of the best of itself and of its
        neighbours among those that may stop, so that what stands beside a token that is found goes on with it. 1: none.
        before: how many share the rank of one that they stand before, at most half; the others stand behind it, as what
        is asked for follows the words that a question finds.
    voters: last prompt tokens whose attention ranks the others in prefill. votes: "mean": each head's vote is the mean
        of what they pay, those that have stopped below paying nothing; "max": the most that any of them pays, as for
        what one word of a question asks for. Decode steps have one voter, the current token.
    rank_layers: "all": in prefill a token has its best rank of all layers below, so that it matters little which of
        them finds; "last": that of the layer right below, as decode steps have.

    The paper ranks by the last token's attention in the layer below alone: kernel=1, voters=1, rank_layers='last',
    sink=0.

    A step starts from all tokens again: every decode step makes a choice of its own, and computes only what it chose
    and no earlier step has. Tokens that stop leave the input of the layer (its hidden state) behind, so a token is
    computed at most once in every layer; `aux_bytes` counts them. The current token always goes on.

    The ranking needs the last prompt token. With chunked prefill, every chunk therefore goes up to the first pruning
    layer and waits there, as hidden states; the last chunk makes the choice, and the survivors go on together, a chunk
    of them at a time. The result does not depend on the chunk size.

    Sliding-window layers keep the units that leave the window, since a revived token needs those around itself, so on a
    model with such layers the cache can outgrow full attention's (a warning says so; revive='never' avoids it). Revived
    tokens see their own window there, causally. Layers below a pruning layer should see the whole prompt; the preset
    picks such layers where the model has any.

    Ranking reads the keys of the layers that it asks a second time; `units_read` does not count that.

    Source: Fu et al., LazyLLM: Dynamic Token Pruning for Efficient Long Context LLM Inference, arXiv:2407.14057,
    section 3. The paper drops scores below a percentile; here the kept tokens are counted: the share of the candidates
    rounded up, ties to the earlier position.
    """

    layers: tuple[int, ...] | None = None
    keep: float | tuple[float, ...] | None = None
    cumulative: tuple[float, ...] | None = None
    revive: Literal["relaxed", "causal", "never"] = "relaxed"
    keep_decode: float | tuple[float, ...] | None = 1.0
    prune_generated: bool = False
    sink: Natural = 4
    max_revive: int | None = 3
    kernel: Count = 47
    before: Natural = 7
    voters: Count = 32
    votes: Literal["mean", "max"] = "max"
    rank_layers: RankLayers = "all"

    name = "lazyllm"
    source = "arXiv:2407.14057, section 3"
    off: ClassVar = {"keep": 1.0}
    trial: ClassVar = {"layers": (1, 3), "keep": (0.5, 0.4), "kernel": 3, "voters": 5, "sink": 1}
    matters: ClassVar = {
        "revive": Where("a keep below 1", lambda policy: policy.stops_in_prefill or not policy.prunes),
        "keep_decode": Where("revive='relaxed' or 'causal'", lambda policy: policy.revive != "never"),
        "prune_generated": Where(
            "revive='relaxed' or 'causal' with a keep below 1 in decode steps",
            lambda policy: policy.revive != "never" and (policy.stops_in_decode or not policy.prunes),
        ),
        "max_revive": Where(
            "revive='relaxed' or 'causal' with a keep below 1",
            lambda policy: policy.revive != "never" and (policy.stops_in_prefill or not policy.prunes),
        ),
        "kernel": Where("a keep below 1", lambda policy: policy.prunes),
        "before": Where("a kernel above 1 and a keep below 1", lambda policy: policy.prunes and policy.kernel > 1),
        "voters": Where("a keep below 1", lambda policy: policy.stops_in_prefill or not policy.prunes),
        "rank_layers": Where(
            "a keep below 1, and a layer above 1",
            lambda policy: (policy.stops_in_prefill or not policy.prunes) and policy.layers != (1,),
        ),
        "sink": Where("a keep below 1", lambda policy: policy.prunes),
        "votes": Where("voters above 1", lambda policy: policy.voters > 1),
    }

    def check(self) -> None:
        if self.layers is not None:
            self.require(len(self.layers) > 0, "layers=[] prunes nowhere; leave the policy out, or give layers")
            self.require(all(a < b for a, b in pairwise(self.layers)), f"layers={list(self.layers)} must rise")
            self.require(
                self.layers[0] >= 1,
                f"layers={list(self.layers)}: layer 0 has no layer below to rank tokens by; from 1 on",
            )
        self.require(self.keep is None or self.cumulative is None, "keep and cumulative both say how much; give one")
        for name in ("keep", "keep_decode", "cumulative"):
            values = getattr(self, name)
            shares = values if isinstance(values, tuple) else () if values is None else (values,)
            self.require(all(0 < s <= 1 for s in shares), f"{name}={values} must be above 0 and at most 1")
            known = len(self.layers) if self.layers is not None else len(CUMULATIVE)
            if isinstance(values, tuple):
                self.require(
                    len(values) == known, f"{name} has {len(values)} values for {known} pruning layers; one for each"
                )
        if self.cumulative is not None:
            self.require(
                all(a >= b for a, b in pairwise(self.cumulative)),
                f"cumulative={list(self.cumulative)} grows, but a layer cannot see more tokens than the one below",
            )
        if self.layers is not None and self.keep is None and self.cumulative is None:
            self.require(len(self.layers) == len(CUMULATIVE), "give keep with layers, for example keep=0.5")
        self.require(
            self.max_revive is None or self.max_revive >= 0, f"max_revive={self.max_revive} must be at least 0"
        )
        check_kernel(self)

    def validate(self, shape: ModelShape) -> None:
        last = last_layer(shape) if self.revives else shape.layers - 1
        if self.revives and any(window is not None for window in shape.windows):
            warnings.warn(
                "lazyllm keeps the units that leave a sliding window, so on this model its cache can outgrow full "
                "attention's; revive='never' drops them",
                stacklevel=2,
            )
        if self.layers is None:
            self.require(last >= 1, f"a model of {shape.layers} layers has no layer to prune at{self._why(shape)}")
            if not self.prunes:
                return
            found = "" if shape.finds is None else f" that first finds what was said before in layer {shape.finds}"
            model, stages = f"a model of {shape.layers} layers{found}", len(self._stages(shape))
            above = shape.finds is None or shape.finds < last
            self.require(above, f"{model} has none above it to prune at{self._why(shape)}; or give layers")
            self.require(
                stages == len(self._ratios) or (isinstance(self.keep, float | None) and self.cumulative is None),
                f"{model} has {stages} preset layers to prune at; give layers with the shares",
            )
            return
        top = self.layers[-1]
        self.require(
            top < shape.layers, f"layers={list(self.layers)}, but the model's layers are 0 to {shape.layers - 1}"
        )
        self.require(top <= last, f"layer {top} is too near the end; prune at {last} at most{self._why(shape)}")

    def _why(self, shape: ModelShape) -> str:
        if not self.revives:
            return ""
        unit = 2 * shape.kv_heads * shape.head_dim
        return (
            f": a parked token is a hidden state of {shape.hidden} numbers, and a layer above saves {unit}, so that "
            "less would not pay; with revive='never' nothing stays parked"
        )

    @property
    def revives(self) -> bool:
        """Whether tokens that stop are parked: where decode steps choose, or something can come back."""
        return self.revive != "never" and (self.stops_in_decode or (self.stops_in_prefill and self.max_revive != 0))

    @property
    def prunes(self) -> bool:
        """Whether anything stops anywhere."""
        return self.stops_in_prefill or self.stops_in_decode

    @property
    def stops_in_prefill(self) -> bool:
        """Whether prompt tokens stop, so that there is something to revive."""
        return min(self._ratios) < 1

    @property
    def stops_in_decode(self) -> bool:
        """Whether tokens are left out of decode steps, where these choose."""
        return min(self._decode_ratios) < 1

    @property
    def goes_by_depth(self) -> bool:
        return self.layers is None and self.prunes

    def gates(self, shape: ModelShape) -> tuple[Gate, ...]:
        """The pruning layers. In decode steps those at which nothing may stop or come back have no choice."""
        if not self.prunes:
            return ()
        stages, most = self._stages(shape), math.inf if self.max_revive is None else self.max_revive
        return tuple(
            Gate(
                layer,
                rank_by=ranking(layer, self.rank_layers),
                voters=self.voters,
                peaks=self.votes == "max",
                waits=keep < 1,
                decode=self.revives and (self.stops_in_decode or most >= 2**above),
                stopped="parked" if self.revives else "lost",
                revived_see="all" if self.revive == "relaxed" else "earlier",
            )
            # A small model has fewer stages.
            for above, layer, keep in zip(reversed(range(len(stages))), stages, self._ratios, strict=False)
        )

    def layer_tokens(self, shape: ModelShape, prompt: int, deep: Deep | None = None) -> LayerTokens:
        stages = self._stages(shape) if self.prunes else ()
        rows = rows_per_layer(prompt, shape.layers, stages, self._ratios)
        return LayerTokens(rows, rows)

    def choose(self, gate: Gate, entrance: Entrance) -> Tensor | None:
        stage = self._stages(entrance.shape).index(gate.layer)
        keep = (self._decode_ratios if entrance.decode else self._ratios)[stage]
        candidates = self._candidates(entrance)
        tokens = int(candidates.sum())
        count = survivors(tokens, keep)
        chosen = candidates if count == tokens else self._best(entrance, candidates, candidates, count)
        if entrance.decode and self.max_revive is not None:
            late, above = chosen & entrance.aside, len(self._stages(entrance.shape)) - 1 - stage
            most = (self.max_revive - entrance.revived) // 2**above
            chosen = (chosen & ~late) | self._best(entrance, candidates, late, most)
        elif count == tokens:
            return None
        return (chosen | ~candidates).nonzero().flatten()

    def prefix_stable(self, n: int, deep: Deep) -> int:
        """All but the last prompt tokens, by which the others are chosen among; what waits for them is held as well."""
        return max(0, min(n, deep.prompt - self.voters))

    def _stages(self, shape: ModelShape) -> tuple[int, ...]:
        """The pruning layers, if there are any."""
        if self.layers is not None:
            return self.layers
        return preset_layers(shape, last_layer(shape) if self.revives else shape.layers - 1)

    def _candidates(self, entrance: Entrance) -> Tensor:
        """[tokens] bool: who may stop. Prompt tokens, and generated ones on request, but never the current token."""
        visible = entrance.visible
        candidates = torch.ones_like(visible, dtype=torch.bool) if self.prune_generated else visible < entrance.prompt
        candidates[-1] = False
        return candidates

    def _best(self, entrance: Entrance, candidates: Tensor, among: Tensor, count: int) -> Tensor:
        """[tokens] bool: at most `count` of those `among`, candidates too, the most attended, or nearest to one that
        is; ties go to the earlier position."""
        index = among.nonzero().flatten()
        if len(index) <= count:
            return among
        score = best_nearby(entrance.strongest, candidates, self.kernel, self.before)[index]
        score = score.masked_fill(entrance.visible[index] < self.sink, math.inf)
        best = torch.zeros_like(among)
        best[index[score.sort(descending=True, stable=True).indices[:count]]] = True
        return best

    @cached_property
    def _ratios(self) -> tuple[float, ...]:
        """Share of the candidates that go on at each pruning layer."""
        stages = len(self.layers) if self.layers is not None else len(CUMULATIVE)
        if isinstance(self.keep, tuple):
            return self.keep
        if self.keep is not None:
            return (float(self.keep),) * stages
        shares = self.cumulative or CUMULATIVE
        return tuple(after / before for before, after in pairwise((1.0, *shares)))

    @cached_property
    def _decode_ratios(self) -> tuple[float, ...]:
        if self.keep_decode is None:
            return self._ratios
        if isinstance(self.keep_decode, tuple):
            return self.keep_decode
        return (float(self.keep_decode),) * len(self._ratios)
