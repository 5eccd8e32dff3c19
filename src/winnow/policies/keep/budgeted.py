"""A cache of fixed size: after every chunk, each KV head of each layer keeps its best units and evicts the others.

The policies that do so differ in how they score units, and in which they keep whatever their score.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from winnow.cache.layer import LayerCache
from winnow.errors import InputError
from winnow.parameters import Count, Natural, Where
from winnow.policies.base import Span
from winnow.policies.keep.base import KeepPolicy, Moment, Needs, cache_spans, evict_outside, window_bound

SAME = 1e-5  # relative difference of scores that says nothing: rounding depends on which rows are computed together
LOCAL = 100  # the paper's tail of a prompt, Locret, table 6
Positions = Literal["compact", "original"]
# Of what acts between two evictions: without chunks there is one, at the end of the prompt.
SEVERAL_EVICTIONS = Where(
    "chunk=... or decode_chunk=...", lambda policy: policy.chunk is not None or policy.decode_chunk is not None
)


class Budgeted(KeepPolicy):
    """Base of the policies with a budget; their fields have these names and meanings.

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

    needs: ClassVar[Needs] = "attention"
    same_in_layers = False

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

    def check_prompt(self, prompt: int) -> None:
        if self.local is not None and self.local >= prompt:
            raise InputError(
                f"{self.name}: local={self.local} leaves nothing of a prompt of {prompt} tokens; use at most "
                f"local={prompt - 1}"
            )

    def tail(self, prompt: int) -> int:
        """Last tokens of a prompt that stay beside the budget."""
        return min(min(LOCAL, self.budget) if self.local is None else self.local, prompt - 1)

    def acts(self, window: int | None) -> bool:
        """Whether layers of this window are compressed."""
        return window is None or window > self.budget

    def compact(self, window: int | None) -> bool:
        return self.positions == "compact" and self.acts(window)

    def scores_units(self, window: int | None) -> bool:
        return self.acts(window)

    def rope_positions(self, prompt: int, new: int) -> int | None:
        return self._most(prompt, new) if self.positions == "compact" else None

    def bound(self, prompt: int, new: int, chunk: int, window: int | None) -> int | None:
        return self._most(prompt, new) if self.acts(window) else window_bound(chunk, window)

    def boundary(self, known: int, prompt: int) -> int | None:
        end = prompt - self.tail(prompt)
        if known < end:
            return end if self.chunk is None else min((known // self.chunk + 1) * self.chunk, end)
        if self.decode_chunk is None:
            return None
        return prompt + (max(0, known - prompt) // self.decode_chunk + 1) * self.decode_chunk

    def spans(self, cache: LayerCache, rows: int, first: int, positions: Tensor, window: int | None) -> list[Span]:
        if not self.acts(window):
            return cache_spans(cache, rows, window)
        # One row, too, is shown what has left its window: its votes are on all units of the cache.
        return [Span(cache.start, cache.stop, cache.length - rows, window)]

    def evict(self, cache: LayerCache, window: int | None) -> None:
        if not self.acts(window):
            evict_outside(cache, window)

    def compress(self, cache: LayerCache, moment: Moment) -> None:
        if not self.acts(moment.window):
            return
        self.update(cache, moment)
        beside = 0
        if moment.late:  # the tail has come with the others
            beside = int((cache.live_positions() >= moment.prompt - self.tail(moment.prompt)).sum())
        if cache.length > self.budget + beside:
            cache.retain(self.choose(cache, moment, beside), room=moment.room)

    def update(self, cache: LayerCache, moment: Moment) -> None:
        """Bring the scores up to date before units are chosen."""

    def choose(self, cache: LayerCache, moment: Moment, beside: int) -> Tensor:
        """[kv_heads, budget + beside] or [budget + beside] index of the live units that stay, ascending.

        beside: newest units that stay and are not counted in the budget.
        """
        scores = self.ranked(cache, moment)
        most = torch.finfo(scores.dtype).max
        if (protected := self.protected(moment) + beside) > 0:
            scores[:, -protected:] = most
        if moment.window is not None:  # what has left the window is of no use to anyone
            scores.masked_fill_(cache.live_positions() <= moment.known - moment.window, -most)
        return best(scores, self.budget + beside)

    def ranked(self, cache: LayerCache, moment: Moment) -> Tensor:
        """[kv_heads, units] float32, a copy: units with a higher value stay."""
        return cache.live_scores()

    def protected(self, moment: Moment) -> int:
        """How many of the newest units stay whatever their score."""
        return 0

    def prompt_ends(self, moment: Moment) -> bool:
        """Whether this is the last eviction of the prompt."""
        return moment.late or moment.known == moment.prompt - self.tail(moment.prompt)

    def _most(self, prompt: int, new: int) -> int:
        """The most units per KV head at any time, for a prompt and `new` tokens after it."""
        tail = self.tail(prompt)
        filling = min(prompt - tail, self.budget + (prompt if self.chunk is None else self.chunk))
        first = tail + (new if self.decode_chunk is None else min(new, self.decode_chunk))
        later = 0 if self.decode_chunk is None or new <= self.decode_chunk else self.budget + self.decode_chunk
        return max(filling, min(prompt - tail, self.budget) + first, min(later, prompt + new))


def best(scores: Tensor, count: int) -> Tensor:
    """Index [heads, count], ascending, of the highest of finite scores [heads, units].

    Where several have the last place's score, but for rounding, as units of a token repeated have in the first layer,
    the newest of them are taken.
    """
    edge = scores.topk(count).values[:, -1:]
    slack = SAME * edge.abs()
    above = scores > edge + slack
    level = (scores >= edge - slack) & ~above
    room = count - above.sum(-1, keepdim=True)
    newer = level.flip(-1).cumsum(-1).flip(-1)  # how many of the level stand here or later
    return (above | (level & (newer <= room))).nonzero()[:, 1].view(len(scores), count)
