"""KVzap: what trained heads score below a threshold leaves the cache, in every head as much as it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from winnow.cache.layer import LayerCache
from winnow.cache.pattern import ALL, HELD, All
from winnow.cache.view import NOBODY
from winnow.parameters import Count
from winnow.policies.base import LayerContext, Services
from winnow.policies.keep.base import Moment, end_of_chunk
from winnow.policies.keep.best import best_of_layer
from winnow.policies.keep.scored_by_heads import ScoredByHeads


@dataclass(frozen=True)
class KVzap(ScoredByHeads):
    """Keep the units that small trained heads give at least `threshold`, and the newest: as many as the text needs.

    A unit's score is computed once, from the projections of its own token. After every chunk each KV head of each layer
    evicts the units of a lower score than `threshold`, but for its `recent` newest ones; heads and layers keep
    different numbers, and what is gone takes no memory.

    threshold: the lowest score that stays. Heads made by `winnow train kvzap` say the logarithm of what KVzip would
        score a unit: of the greatest share of attention that it gets when the prompt is repeated. Others are refused.
    recent: newest units that stay whatever their score.
    chunk: prompt tokens from one eviction to the next; None: a single one, at the end of the prompt, as in kvpress.
    budget: the most units per KV head that a layer keeps, as the mean over its heads: of more, the best stay. It is
        what memory is reserved by; None: no other bound than the text.
    heads: a directory of retaining heads; None: the LLM's own. None are bundled.
    decode_chunk: new tokens from one eviction to the next; None: none is evicted after the prompt.

    The last eviction of a prompt is at its end, so its first new token has been predicted from all that was held till
    then. In layers with a sliding window what the window lets be seen stays.

    Its authors' heads see a layer's hidden states and have biases; these see queries, keys and values, as Locret's do,
    and learn what KVzip scores, without the norms of KVzip+: thresholds are not those of the paper.

    Source: Jegou and Jeblick, KVzap, arXiv:2601.07891; the rule as in kvpress (KVzapPress in DMSPress).
    """

    per_head = True

    threshold: float = -4.0
    recent: Count = 128
    chunk: Count | None = 512
    budget: Count | None = None
    heads: str | None = None
    decode_chunk: Count | None = None

    name = "kvzap"
    source = "arXiv:2601.07891"
    off: ClassVar = {"threshold": -1e30}
    trial: ClassVar = {"threshold": 0.0, "recent": 3, "chunk": 6, "budget": 20}
    loads: ClassVar = ("heads",)

    def check(self) -> None:
        super().check()
        self.require(
            self.budget is None or self.recent < self.budget,
            f"recent={self.recent} must be below budget={self.budget}, of which they are a part; otherwise no unit is "
            "kept for its score",
        )

    @property
    def ragged(self) -> bool:
        return True

    def prepare(self, services: Services, ids: list[int] | None) -> None:
        self.scorer(services)

    def pattern(self, layer: LayerContext) -> All:
        return HELD if layer.window is None else ALL

    def next_eviction(self, known: int, prompt: int) -> int | None:
        return end_of_chunk(known, prompt, prompt, self.chunk, self.decode_chunk)

    def select(self, cache: LayerCache, moment: Moment) -> Sequence[Tensor] | None:
        scores, positions = cache.live_scores(), cache.live_positions().expand(cache.kv_heads, -1)
        there = positions != NOBODY
        stay = there & (scores >= self.threshold)
        scores[:, -self.recent :] = torch.finfo(scores.dtype).max
        stay[:, -self.recent :] = there[:, -self.recent :]
        if self.budget is not None and int(stay.sum()) > (most := self.budget * len(scores)):
            scores.masked_fill_(~stay, -torch.inf)
            return best_of_layer(scores, positions, most, 0, cancels=self.score.cancels)
        return None if bool((stay == there).all()) else [head.nonzero().flatten() for head in stay]

    def bound(self, prompt: int, new: int, layer: LayerContext) -> int:
        return self._most(prompt, new, self.budget)

    def longest(self, prompt: int, new: int, layer: LayerContext, kv_heads: int) -> int:
        return self._most(prompt, new, None if self.budget is None else self.budget * kv_heads)

    def _most(self, prompt: int, new: int, kept: int | None) -> int:
        """The most units that a head has which keeps `kept` of them at most."""
        if kept is None:
            return prompt + new
        filling = prompt if self.chunk is None else min(prompt, kept + self.chunk)
        later = new if self.decode_chunk is None else min(new, self.decode_chunk)
        return min(prompt + new, max(filling, kept + later))
