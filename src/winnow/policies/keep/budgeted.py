"""A cache of fixed size: after every chunk, each KV head of each layer keeps its best units and evicts the others.

The policies that do so differ in how they score units, and in which they keep whatever their score. Of a budget, layers
and heads may have the same, or shares of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from winnow.cache.layer import LayerCache
from winnow.cache.pattern import ALL, HELD, All
from winnow.cache.view import NOBODY
from winnow.errors import InputError
from winnow.parameters import Count, Natural, Where
from winnow.policies.base import LayerContext, Services
from winnow.policies.compute.base import Deep
from winnow.policies.keep.base import KeepPolicy, Moment, end_of_chunk
from winnow.policies.keep.best import best, best_in_two, best_of_layer

LOCAL = 100  # the paper's tail of a prompt, Locret, table 6
STEEPNESS = 20  # PyramidKV's beta, in the authors' code
EPSILON = 1e-4  # CriticalKV's, which is added to the attention that a unit gets
SURE = 5  # one unit of so many of a head's budget is sure where heads compete: AdaKV's 0.2, in the authors' code
Positions = Literal["compact", "original"]
ByLayer = Literal["uniform", "pyramid"]
ByHead = Literal["uniform", "adaptive"]
Weigh = Literal["uniform", "output"]
# Of what acts between two evictions: without chunks there is one, at the end of the prompt.
SEVERAL_EVICTIONS = Where(
    "chunk=... or decode_chunk=...", lambda policy: policy.chunk is not None or policy.decode_chunk is not None
)


class Budgeted(KeepPolicy):
    """Base of the policies with a budget; their fields have these names and meanings, and they have a `score`.

    budget: units per KV head that a layer keeps.
    chunk: prompt tokens from one eviction to the next; None: one eviction, when the prompt is there (but for `local`).
    local: last tokens of a prompt that stay beside the budget, whole; None: 100, but no more than the budget
        and all but one of the prompt, also of one that is shortened before the model sees it.
    positions: "compact": a unit is rotated at its place among the units that its head has kept, so that a prompt may be
        longer than the model's positions; "original": at its place in the text.
    decode_chunk: new tokens from one eviction to the next; None: none after the prompt. With compact positions a step
        has to rotate all keys anew as long as evictions are to come.
    by_layer: "uniform": every layer has the budget; "pyramid": budgets fall from the first layer to the last, as many
        units in all (`budget_of`).
    by_head: "uniform": every KV head of a layer has the layer's budget; "adaptive": they share kv_heads budgets, and
        those have more of them whose units have higher scores (`choose`). A unit that is not kept takes no memory in
        any head. `read` and `store` are then those of full attention.
    weigh: "uniform": units stay by their scores; "output": half of what a head keeps does, what is `protected` or sure
        among it, and the others are those with the highest (score + 1e-4) * ||W_O v||_1, as the mean of the norm over
        the head's query heads. It is a field of the policies whose scores are the attention that units get or are
        expected to get: a product with scores below 0 would turn the order around.

    A layer never holds more than budget + chunk units per KV head in prefill, as the mean over its heads. Layers whose
    own sliding window is no larger than the budget keep that window instead, with units at their places in the text:
    only distances count there.

    Source of by_layer: Cai et al., PyramidKV, arXiv:2406.02069, section 4, and the authors' code. Of by_head: Feng et
    al., Ada-KV, arXiv:2407.11550, section 4, with the safeguard as in kvpress: the surely kept units of a head are
    its best, where the authors' own code draws the counts towards the mean. Of weigh: Feng et al., Identify Critical
    KV Cache in LLM Inference from an Output Perturbation Perspective, arXiv:2502.03805, algorithm 1, and, of heads
    that share budgets, kvpress: by scores heads get their counts, and of each as many units are chosen as above.
    """

    per_head = True
    off: ClassVar = {"budget": 1_000_000_000}
    trial: ClassVar = {"budget": 9, "chunk": 6, "local": 4}

    budget: Count
    chunk: Count | None
    local: Natural | None
    positions: Positions
    decode_chunk: Count | None
    by_layer: ByLayer = "uniform"
    by_head: ByHead = "uniform"
    weigh: Weigh = "uniform"

    def check(self) -> None:
        if self.local is not None:
            self.require(
                self.local <= self.budget,
                f"budget={self.budget} is less than the {self.local} tokens that local={self.local} adds to it; "
                "use a larger budget or a smaller local",
            )

    def prepare(self, services: Services, ids: list[int] | None) -> None:
        if ids is not None and self.local is not None and self.local >= len(ids):
            raise InputError(
                f"{self.name}: local={self.local} leaves nothing of a prompt of {len(ids)} tokens; use at most "
                f"local={len(ids) - 1}"
            )
        if self.score is not None and self.score.heads is not None:
            self.score.heads(services)

    @property
    def compact(self) -> bool:
        return self.positions == "compact"

    def tail(self, prompt: int) -> int:
        """Last tokens of a prompt that stay beside the budget."""
        return min(min(LOCAL, self.budget) if self.local is None else self.local, prompt - 1)

    def pattern(self, layer: LayerContext) -> All:
        return HELD if self._holds(layer.window) else ALL

    def _holds(self, window: int | None) -> bool:
        """Whether a layer of such a window keeps a budget, instead of the window."""
        return window is None or window > self.budget

    @property
    def ragged(self) -> bool:
        return self.by_head == "adaptive"

    def budget_of(self, layer: LayerContext, prompt: int) -> int:
        """Units per KV head that a layer keeps, as the mean over its heads.

        Under "pyramid" every layer keeps the `f` units that are `fixed` while a prompt goes on, and of the others
        layer l of L keeps b(l), where b = budget - f, last = max(1, b // 20) and first = 2 b - last, but no more than
        the prompt has beside its tail and these, and last then 2 b - first:
        b(l) = first - l (first - last) // (L - 1) in the lower half, and 2 b - b(L - 1 - l) in the upper one. So the
        layers keep L budget units together, as they do when each has the budget. Layers that keep a window are none of
        these.
        """
        if self.by_layer == "uniform":
            return self.budget
        windows = layer.windows or [None] * layer.layers
        own, layers = (sum(map(self._holds, part)) for part in (windows[: layer.index], windows))
        if layers == 1:
            return self.budget
        fixed, first, last = self._slope(layer, prompt)
        nearest = min(own, layers - 1 - own)
        step = nearest * (first - last) // (layers - 1)
        return fixed + (first - step if own == nearest else last + step)

    def _slope(self, layer: LayerContext, prompt: int) -> tuple[int, int, int]:
        """Of a pyramid: units that every layer keeps, and how many others the first and the last layer keep."""
        fixed = self.fixed(Moment(prompt, 0, layer))
        free = self.budget - fixed
        first = max(free, min(2 * free - max(1, free // STEEPNESS), prompt - self.tail(prompt) - fixed))
        return fixed, first, 2 * free - first

    def bound(self, prompt: int, new: int, layer: LayerContext) -> int:
        return self._most(prompt, new, self.budget_of(layer, prompt))

    def longest(self, prompt: int, new: int, layer: LayerContext, kv_heads: int) -> int:
        budget = self.budget_of(layer, prompt)
        others = budget // SURE if self.ragged else budget
        return self._most(prompt, new, kv_heads * budget - (kv_heads - 1) * others)

    def _most(self, prompt: int, new: int, budget: int) -> int:
        """The most units that a head has which keeps `budget` of them."""
        tail = self.tail(prompt)
        filling = min(prompt - tail, budget + (prompt if self.chunk is None else self.chunk))
        first = tail + (new if self.decode_chunk is None else min(new, self.decode_chunk))
        later = 0 if self.decode_chunk is None or new <= self.decode_chunk else budget + self.decode_chunk
        return max(filling, min(prompt - tail, budget) + first, min(later, prompt + new))

    def next_eviction(self, known: int, prompt: int) -> int | None:
        # Where all of it stays steps need not end anywhere.
        end = prompt - self.tail(prompt) if prompt > self.budget else 0
        return end_of_chunk(known, prompt, end, self.chunk, self.decode_chunk)

    def last_chunk(self, n: int, deep: Deep) -> int:
        """For `prefix_stable`: the last eviction up to `n` at a place that any longer prompt has, too.

        The one at the end of a prompt is none, and the rows since the last may have voted for it. Where heads hold
        different numbers of units there is none either: these cannot be brought to lie apart from another's. Nor in a
        prompt that fits its budget: units of which none will be evicted are neither scored nor left unrotated, and
        others vote where the first eviction comes later. Nor in one that is too short for the budgets of a pyramid's
        layers, which a longer one has.
        """
        counted = self.score is not None and (self.score.voters is not None or self.score.repeated)
        fits = deep.prompt <= self.budget and (self.decode_chunk is None or counted)
        short = self.by_layer == "pyramid" and deep.prompt <= 2 * self.budget + self.tail(deep.prompt)
        if self.chunk is None or self.ragged or fits or short:
            return 0
        return min(n, deep.prompt - self.tail(deep.prompt) - 1) // self.chunk * self.chunk

    def voting_from(self, first: int, prompt: int) -> int | None:
        end, score = self.next_eviction(first, prompt), self.score
        if end is None or score is None or score.source != "attention":
            return None
        if score.voters is not None:
            return end - score.voters if end > self._least(prompt) else None
        fits = self.decode_chunk is None and prompt - self.tail(prompt) <= self.budget  # nothing is ever evicted
        return None if fits else 0

    def _least(self, prompt: int) -> int:
        """The least budget of any layer."""
        if self.by_layer == "uniform":
            return self.budget
        fixed, _, last = self._slope(LayerContext(0, 2, None), prompt)
        return fixed + last

    def select(self, cache: LayerCache, moment: Moment) -> Tensor | Sequence[Tensor] | None:
        """[kv_heads, kept] or [kept], or of each KV head [kept]."""
        beside = 0
        if moment.late:  # the tail has come with the others
            beside = int((cache.live_positions() >= moment.prompt - self.tail(moment.prompt)).sum())
        kept = self.budget_of(moment.layer, moment.prompt) + beside
        return self.choose(cache, moment, beside, kept) if cache.units > kept * cache.kv_heads else None

    def choose(self, cache: LayerCache, moment: Moment, beside: int, kept: int) -> Tensor | Sequence[Tensor]:
        """[kv_heads, kept] or [kept] index of the live units that stay, ascending; kept: budget of the layer + beside.

        beside: newest units that stay and are not counted in the budget. Where heads compete, they keep
        kv_heads * kept units, for each head its index: the protected ones of every head, of each head the best fifth of
        what its budget leaves beside these, and else the best of all heads.
        """
        assert self.score is not None
        scores, positions, cancels = cache.live_scores(), cache.live_positions(), self.score.cancels
        for heads, begin in cache.begins:
            scores[heads, begin:] = self.ranked(scores[heads, begin:])
        protected = sure = self.protected(moment) + beside
        ranks = _settled(scores, positions, moment, protected)
        index: Tensor | list[Tensor]
        if self.ragged:
            sure += (kept - protected) // SURE
            index = best_of_layer(ranks, positions.expand_as(ranks), kept * len(ranks), sure, cancels=cancels)
        else:
            index = best(ranks, kept, cancels=cancels)
        if moment.outputs is None:
            return index
        weighed = _settled(_by_output(scores, moment.outputs), positions, moment, protected)
        chosen = [
            best_in_two(first, second, len(mine), max(1, sure, (beside + len(mine)) // 2), cancels=cancels)
            for first, second, mine in zip(ranks.split(1), weighed.split(1), index, strict=True)
        ]
        return [each[0] for each in chosen] if self.ragged else torch.cat(chosen)

    def ranked(self, scores: Tensor) -> Tensor:
        """Of the units' scores [kv_heads, units] what they are ranked by; they may be written to."""
        return scores

    def protected(self, moment: Moment) -> int:
        """How many of the newest units stay whatever their score."""
        return 0

    def fixed(self, moment: Moment) -> int:
        """How many units stay whatever their score, wherever they stand."""
        return self.protected(moment)

    def prompt_ends(self, moment: Moment) -> bool:
        """Whether this is the last eviction of the prompt."""
        return moment.late or moment.known == moment.prompt - self.tail(moment.prompt)


@dataclass(frozen=True)
class HeadByHead(Budgeted):
    """Base of the policies that score each KV head's units by themselves and have no parameters beside these."""

    budget: Count = 1024
    chunk: Count | None = 512
    local: Natural | None = None
    positions: Positions = "original"
    decode_chunk: Count | None = None
    by_layer: ByLayer = "uniform"
    by_head: ByHead = "uniform"


def _by_output(scores: Tensor, outputs: Tensor) -> Tensor:
    """What units add to the layer's output, [kv_heads, slots], by the attention that they get; what has the highest
    score that there is stays whatever it adds."""
    most = torch.finfo(scores.dtype).max
    return ((scores + EPSILON) * outputs).masked_fill_(scores >= most, most)


def _settled(ranks: Tensor, positions: Tensor, moment: Moment, protected: int) -> Tensor:
    """`ranks` [kv_heads, slots] of units at `positions`, with the newest `protected` first, what no later row of the
    layer sees last, and -inf where a head has no unit."""
    most = torch.finfo(ranks.dtype).max
    ranks = ranks.clone()
    if protected > 0:
        ranks[:, -protected:] = most
    if moment.layer.window is not None:
        ranks.masked_fill_(positions <= moment.known - moment.layer.window, -most)
    return ranks.masked_fill_(positions == NOBODY, -torch.inf)
