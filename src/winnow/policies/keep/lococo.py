"""LoCoCo: a cache of fixed size keeps what is attended to most, and sums of all the rest."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from winnow.cache.layer import LayerCache
from winnow.cache.pattern import ALL, HELD, All
from winnow.cache.sums import Sums
from winnow.parameters import Count, Natural
from winnow.policies.base import LayerContext, Services
from winnow.policies.compute.base import Deep
from winnow.policies.keep.base import KeepPolicy, Merger, Moment, Score
from winnow.policies.keep.best import best
from winnow.policies.keep.scored_by_heads import ScoredByHeads


@dataclass(frozen=True)
class LoCoCo(KeepPolicy):
    """Keep the units that the newest rows attend to most, and sums of all others by the weights of a convolution.

    A layer that holds more than it may, M = `budget` units per KV head, keeps the M_h = M - M_c units of the highest
    scores as they are, in their order, and behind them M_c sums of the N others, made by the layer's convolution:
    W = (1 - share) W_res + share softmax(relu(conv(K, V))), [M_c, N], K_c = W K and V_c = W V. Row i of W_res has a 1
    at the i-th, in order, of the M_c others of the highest scores. Scores are the attention that the last chunk of the
    prompt, or the last row after it, has given to a unit, as a sum over rows and the mean over the query heads of a
    group; they are made anew for every compression, and sums have some like any unit. Keys are summed as they were
    rotated, at places in the text. M_c, the weights and the shares are the convolutions' own, trained for one model.

    budget: units per KV head that a layer keeps, sums among them.
    chunk: prompt tokens from one compression to the next: those whose rows vote.
    recent: newest units that stay as they are, inside the budget; 0 in both papers. Where fewer tokens have come since
        the last compression, sums of it are among them.
    decode_chunk: units above the budget at which a layer is compressed, and so new tokens from one compression to the
        next, 17 in the authors' code; None: a prompt is compressed to the budget whatever comes, and new tokens never.
    convolutions: a directory of them; None: those that the LLM was given.

    The prompt goes in chunks of `chunk` and is compressed after each, as is whatever is there at its end: for a prompt
    of at most budget + decode_chunk - 1 tokens this is full attention. A layer that has a sliding window keeps that
    window: its units leave by themselves. The first compression is that of t_1 tokens, the first end of a chunk, or of
    the prompt, or token after it, at which t_1 >= budget + decode_chunk; the next is the first such one at which
    t >= t_i + decode_chunk, and a layer holds t - t_i + budget units before it. All that it holds is read.

    Source: Cai et al., LoCoCo, arXiv:2406.05317, section 3, and the authors' code; the choice of `budget` and the
    prompt's last chunk as in Huang et al., Locret, arXiv:2410.01805, appendix C.2.
    """

    per_head = True
    keeps_sums = True

    budget: Count = 1024
    chunk: Count = 512
    recent: Natural = 0
    decode_chunk: Count | None = 17
    convolutions: str | None = None

    name = "lococo"
    source = "arXiv:2406.05317, section 3"
    off: ClassVar = {"budget": 1_000_000_000}
    trial: ClassVar = {"budget": 9, "chunk": 6, "recent": 1, "decode_chunk": 1}
    loads: ClassVar[tuple[str, ...]] = ("convolutions",)

    def check(self) -> None:
        self.require(
            self.recent < self.budget,
            f"recent={self.recent} must be below budget={self.budget}, of which it is a part; otherwise no unit is "
            "kept for its score",
        )
        self.require(
            self.convolutions != "", "convolutions='' is no directory; leave convolutions out for those of the LLM"
        )

    def prepare(self, services: Services, ids: list[int] | None) -> None:
        sums = self.merger(services).sums
        self.require(
            self.budget > sums + self.recent,
            f"budget={self.budget} leaves no unit to be kept for its score beside recent={self.recent} and the {sums} "
            f"sums that the convolutions make; use a budget of at least {sums + self.recent + 1}",
        )
        if self.score.heads is not None:
            self.score.heads(services)

    @property
    def score(self) -> Score:
        return Score("attention", voters=self.chunk)

    def merger(self, services: Services) -> Merger:
        return services.convolutions(self.convolutions)

    def pattern(self, layer: LayerContext) -> All:
        return HELD if layer.window is None else ALL

    @property
    def slack(self) -> int:
        """Units above the budget at which a layer is compressed."""
        return self.decode_chunk or 1

    def _due(self, tokens: int, prompt: int) -> int:
        """The end of the first chunk, of the prompt, or of a token after it, at which there are so many tokens."""
        return tokens if tokens > prompt else min(-(-tokens // self.chunk) * self.chunk, prompt)

    def _last_in_prompt(self, known: int, prompt: int) -> int:
        """After how many tokens, `known` or fewer and at most `prompt`, units were last compressed; 0: not yet."""
        known, first = min(known, prompt), self._due(self.budget + self.slack, prompt)
        if known < first:
            return 0
        step = -(-self.slack // self.chunk) * self.chunk
        last = first + (known - first) // step * step
        return prompt if known == prompt and prompt - last >= self.slack else last

    def next_eviction(self, known: int, prompt: int) -> int | None:
        last = self._last_in_prompt(known, prompt)
        following = self._due(last + self.slack if last else self.budget + self.slack, prompt)
        if following <= prompt:
            return following
        if self.decode_chunk is None:
            return None
        return following + max(0, known - following + self.decode_chunk) // self.decode_chunk * self.decode_chunk

    def voting_from(self, first: int, prompt: int) -> int | None:
        end = self.next_eviction(first, prompt)
        if end is None or self.score.source != "attention":
            return None
        return (end - 1) // self.chunk * self.chunk if end <= prompt else end - 1

    def bound(self, prompt: int, new: int, layer: LayerContext) -> int:
        first, last = self._due(self.budget + self.slack, prompt), self._last_in_prompt(prompt, prompt)
        step = -(-self.slack // self.chunk) * self.chunk
        held = self.budget + prompt - last if last else prompt
        most = max(held, min(first, prompt), self.budget + min(step, prompt - first) if first < prompt else 0)
        return max(most, held + new if self.decode_chunk is None else min(held + new, self.budget + self.slack))

    def prefix_stable(self, n: int, deep: Deep) -> int:
        """Up to the last end of a chunk before the prompt's own end; what is never compressed has no scores."""
        if self.next_eviction(0, deep.prompt) is None:
            return 0
        return min(n, deep.prompt - 1) // self.chunk * self.chunk

    def select(self, cache: LayerCache, moment: Moment) -> Sums | None:
        """Units that stay, and sums; None where the layer holds no more than the budget."""
        if cache.length <= self.budget:
            return None
        assert moment.merger is not None
        kept, parts, seeds = parted(
            cache.live_scores(), self.budget - moment.merger.sums, moment.merger.sums, self.recent,
            cancels=self.score.cancels,
        )  # fmt: skip
        weights = moment.merger(moment.layer.index, *cache.pick(parts), seeds)
        return Sums(kept, parts, weights, parts.gather(1, seeds), self.score_of_sums)

    @property
    def score_of_sums(self) -> float:
        """What sums are ranked by until they get votes."""
        return 0.0


@dataclass(frozen=True)
class LoCoCoLocret(ScoredByHeads, LoCoCo):
    """LoCoCo whose units are ranked by Locret's retaining heads: those that these expect to be attended to most stay.

    A unit's score is computed once, from the projections of its own token, and stored with it. A sum has the lowest
    score there is, so that it is part of the next sums.

    heads: a directory or bundled name of retaining heads; None: the LLM's own, or the bundled ones of this model.
    Otherwise as `lococo`.

    Source: Huang et al., Locret, arXiv:2410.01805, section 4.4 and appendix C.2, and the authors' code.
    """

    heads: str | None = None

    name = "lococo_locret"
    source = "arXiv:2410.01805, appendix C.2"
    loads: ClassVar = ("convolutions", "heads")

    @property
    def score_of_sums(self) -> float:
        return torch.finfo(torch.float32).min


class Parted(NamedTuple):
    """Units of a layer: kept: [heads, kept] index of those that stay, parts: [heads, others], of those that are summed,
    seeds: [heads, sums] index of some of `parts`; all ascending."""

    kept: Tensor
    parts: Tensor
    seeds: Tensor


def parted(scores: Tensor, keep: int, sums: int, recent: int, *, cancels: bool = False) -> Parted:
    """The `keep` units of the highest scores, [heads, units], the newest `recent` among them; of the others the best.

    cancels: as of `best`.
    """
    ranked = scores.clone()
    ranked[:, ranked.shape[1] - recent :] = torch.finfo(scores.dtype).max
    kept = best(ranked, keep, cancels=cancels)
    others = torch.ones_like(scores, dtype=torch.bool).scatter(1, kept, False)
    parts = others.nonzero()[:, 1].view(len(scores), -1)
    return Parted(kept, parts, best(scores.gather(1, parts), sums, cancels=cancels))
