"""A cache of fixed size: after every chunk, each KV head of each layer keeps its best units and evicts the others.

The policies that do so differ in how they score units, and in which they keep whatever their score.
"""

from typing import Literal

import torch
from torch import Tensor

from winnow.cache.layer import LayerCache
from winnow.cache.pattern import ALL, HELD, All
from winnow.errors import InputError
from winnow.parameters import Count, Natural, Where
from winnow.policies.base import LayerContext, Services
from winnow.policies.keep.base import KeepPolicy, Moment

SAME = 1e-5  # relative difference of scores that says nothing: rounding depends on which rows are computed together
LOCAL = 100  # the paper's tail of a prompt, Locret, table 6
Positions = Literal["compact", "original"]
# Of what acts between two evictions: without chunks there is one, at the end of the prompt.
SEVERAL_EVICTIONS = Where(
    "chunk=... or decode_chunk=...", lambda policy: policy.chunk is not None or policy.decode_chunk is not None
)


class Budgeted(KeepPolicy):
    """Base of the policies with a budget; their fields have these names and meanings, and they have a `score`.

    budget: units per KV head that a layer keeps.
    chunk: prompt tokens from one eviction to the next; None: one eviction, when the prompt is there (but for `local`).
    local: last tokens of a prompt that stay beside the budget, whole; None: 100, or all but one of a shorter prompt.
        Of a prompt that is shortened before the model sees it, never more than all but one.
    positions: "compact": a unit is rotated at its place among the units that its head has kept, so that a prompt may be
        longer than the model's positions; "original": at its place in the text.
    decode_chunk: new tokens from one eviction to the next; None: none after the prompt. With compact positions a step
        has to rotate all keys anew as long as evictions are to come.

    A layer never holds more than budget + chunk units per KV head in prefill. Layers whose own sliding window is no
    larger than the budget keep that window instead, with units at their places in the text: only distances count there.
    """

    per_head = True

    budget: Count
    chunk: Count | None
    local: Natural | None
    positions: Positions
    decode_chunk: Count | None

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
        return HELD if layer.window is None or layer.window > self.budget else ALL

    def bound(self, prompt: int, new: int, layer: LayerContext) -> int:
        tail = self.tail(prompt)
        filling = min(prompt - tail, self.budget + (prompt if self.chunk is None else self.chunk))
        first = tail + (new if self.decode_chunk is None else min(new, self.decode_chunk))
        later = 0 if self.decode_chunk is None or new <= self.decode_chunk else self.budget + self.decode_chunk
        return max(filling, min(prompt - tail, self.budget) + first, min(later, prompt + new))

    def next_eviction(self, known: int, prompt: int) -> int | None:
        end = prompt - self.tail(prompt)
        if known < end:
            return end if self.chunk is None else min((known // self.chunk + 1) * self.chunk, end)
        if self.decode_chunk is None:
            return None
        return prompt + (max(0, known - prompt) // self.decode_chunk + 1) * self.decode_chunk

    def voting_from(self, first: int, prompt: int) -> int | None:
        end, score = self.next_eviction(first, prompt), self.score
        if end is None or score is None or score.source != "attention":
            return None
        if score.voters is not None:
            return end - score.voters if end > self.budget else None
        fits = self.decode_chunk is None and prompt - self.tail(prompt) <= self.budget  # nothing is ever evicted
        return None if fits else 0

    def select(self, cache: LayerCache, moment: Moment) -> Tensor | None:
        """[kv_heads, kept] or [kept]."""
        beside = 0
        if moment.late:  # the tail has come with the others
            beside = int((cache.live_positions() >= moment.prompt - self.tail(moment.prompt)).sum())
        return self.choose(cache, moment, beside) if cache.length > self.budget + beside else None

    def choose(self, cache: LayerCache, moment: Moment, beside: int) -> Tensor:
        """[kv_heads, budget + beside] or [budget + beside] index of the live units that stay, ascending.

        beside: newest units that stay and are not counted in the budget.
        """
        scores = self.ranked(cache.live_scores())
        most = torch.finfo(scores.dtype).max
        if (protected := self.protected(moment) + beside) > 0:
            scores[:, -protected:] = most
        if moment.layer.window is not None:  # what has left the window is of no use to anyone
            scores.masked_fill_(cache.live_positions() <= moment.known - moment.layer.window, -most)
        # A score made of projections is a sum of terms of either sign; attention adds up terms of one.
        return best(scores, self.budget + beside, cancels=self.score is not None and self.score.source == "kv")

    def ranked(self, scores: Tensor) -> Tensor:
        """Of the units' scores [kv_heads, units] what they are ranked by; they may be written to."""
        return scores

    def protected(self, moment: Moment) -> int:
        """How many of the newest units stay whatever their score."""
        return 0

    def prompt_ends(self, moment: Moment) -> bool:
        """Whether this is the last eviction of the prompt."""
        return moment.late or moment.known == moment.prompt - self.tail(moment.prompt)


def best(scores: Tensor, count: int, *, cancels: bool = False) -> Tensor:
    """Index [heads, count], ascending, of the highest of finite scores [heads, units].

    Where several have the last place's score, but for rounding, as units of a token repeated have in the first layer,
    the newest of them are taken. cancels: whether scores are sums of larger terms of either sign: those of the last
    place are then as uncertain as the largest of a head, those of units that are kept or given up anyway apart.
    """
    edge = scores.topk(count).values[:, -1:]
    size = edge.abs()
    if cancels:
        size = scores.abs().masked_fill(scores.abs() == torch.finfo(scores.dtype).max, 0.0).amax(-1, keepdim=True)
    slack = SAME * size
    above = scores > edge + slack
    level = (scores >= edge - slack) & ~above
    room = count - above.sum(-1, keepdim=True)
    newer = level.flip(-1).cumsum(-1).flip(-1)  # how many of the level stand here or later
    return (above | (level & (newer <= room))).nonzero()[:, 1].view(len(scores), count)
