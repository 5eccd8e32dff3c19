"""SirLLM: tokens that surprised the model stay in a cache of fixed size."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from winnow.cache.layer import LayerCache
from winnow.parameters import Count, Natural, Share
from winnow.policies.compute.base import Deep
from winnow.policies.keep.base import Moment, Score
from winnow.policies.keep.budgeted import SEVERAL_EVICTIONS, Budgeted, ByHead, ByLayer, Positions

RECENT_PART = 7  # Locret's setting of it keeps the last 1000 of 7004 tokens, table 6


@dataclass(frozen=True)
class SirLLM(Budgeted):
    """Keep the tokens that surprised the model most, the first ones and the last: the same in all layers and heads.

    Of the tokens that a cache holds, the `budget - sink - recent` with the highest surprisal stay and the first `sink`;
    the newest of the others, `recent` at least, fill the budget.

    budget: units per KV head that a layer keeps, in tokens.
    chunk: prompt tokens from one eviction to the next; None: a single one.
    sink: first tokens of the text, which stay, inside the budget.
    recent: newest tokens that surely stay, inside the budget; None: a seventh of the budget, as where Locret's authors
        compare with it.
    surprisal_of: "next": -ln P(token | the tokens before it), as published; infinite for the first token of the text,
        which has none. "repeat": what the authors' code computes, -ln P(the token before it, once more), and the
        highest value of the chunk for the first token of each chunk.
    decay: what the surprisal of all tokens held is multiplied by after every eviction, above 0 and at most 1.
    local: last tokens of the prompt that stay beside the budget; None: 100, but no more than the budget and all but
        one of the prompt.
    positions: "compact": rope positions are places among the kept units, as in the authors' code, and a prompt may be
        longer than the model's positions; "original": places in the text.
    decode_chunk: new tokens from one eviction to the next; None: none is evicted after the prompt.
    by_layer: "pyramid": budgets fall from the first layer to the last; `sink` and `recent` stay in all of them.
    by_head: "uniform" alone, since a token has one surprisal in all heads.

    The authors evict before a chunk rather than after one, and count the chunk to come as part of their cache: with
    their `start`, `recent` and `entropy` tokens and chunks of m, `budget` is start + recent + entropy - m here, `sink`
    is their start, and entropy - m tokens stay for their surprisal. They leave the last chunk of a prompt whole; here
    that is what `local` is for.

    Source: Yao et al., SirLLM, arXiv:2405.12528, section 3; the authors' code.
    """

    budget: Count = 1024
    chunk: Count | None = 512
    sink: Natural = 4
    recent: Natural | None = None
    surprisal_of: Literal["next", "repeat"] = "next"
    decay: Share = 1.0
    local: Natural | None = None
    positions: Positions = "compact"
    decode_chunk: Count | None = None
    by_layer: ByLayer = "uniform"
    by_head: ByHead = "uniform"

    name = "sirllm"
    source = "arXiv:2405.12528, section 3"
    trial: ClassVar = {"budget": 9, "chunk": 6, "sink": 2, "recent": 2, "local": 4}
    matters: ClassVar = {"decay": SEVERAL_EVICTIONS}

    def check(self) -> None:
        super().check()
        self.require(
            self.by_head == "uniform",
            "by_head='adaptive' shares a budget among heads by their scores, and a token's surprisal is the same in "
            "all of them; leave it out, or use it with locret, snapkv, h2o or scissorhands",
        )
        self.require(
            self._stay < self.budget,
            f"sink={self.sink} and recent={self._recent} must leave a part of budget={self.budget}; otherwise no token "
            "is kept for its surprisal",
        )

    @property
    def score(self) -> Score:
        return Score("logits", repeated=self.surprisal_of == "repeat", decay=self.decay)

    def prefix_stable(self, n: int, deep: Deep) -> int:
        return self.last_chunk(n, deep)

    def protected(self, moment: Moment) -> int:
        return self._stay

    def choose(self, cache: LayerCache, moment: Moment, beside: int, kept: int) -> Tensor:
        scores = cache.live_scores()[0]
        seen = torch.ones_like(scores, dtype=torch.bool)  # by rows to come: where there is a window, what is in it
        if moment.layer.window is not None:
            seen = cache.live_positions().expand(cache.kv_heads, -1)[0] > moment.known - moment.layer.window
            scores = scores.masked_fill(~seen, -torch.inf)
        # Stable: the first token of a chunk may share its highest value, and the older of the two goes first.
        order = scores.argsort(descending=True, stable=True)
        stays = torch.zeros_like(scores, dtype=torch.bool)
        stays[order[: kept - self._stay]] = True
        stays[: self.sink] = True
        stays &= seen
        places = torch.arange(len(scores), device=scores.device)
        return places.masked_fill(stays, len(scores)).topk(kept).indices.sort().values

    @property
    def _recent(self) -> int:
        return self.budget // RECENT_PART if self.recent is None else self.recent

    @property
    def _stay(self) -> int:
        """How many tokens stay whatever their surprisal."""
        return self.sink + self._recent
