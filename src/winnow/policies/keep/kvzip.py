"""KVzip: what a model needs to repeat its prompt stays, of all layers and heads together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from winnow.cache.layer import LayerCache
from winnow.cache.pattern import ALL, HELD, All
from winnow.errors import CapacityError, InputError
from winnow.parameters import Count, Natural
from winnow.policies.base import LayerContext, ModelShape, Services
from winnow.policies.compute.turns import closing
from winnow.policies.keep.base import KeepPolicy, Moment, Repeat, Score
from winnow.policies.keep.best import best_of_all
from winnow.policies.keep.budgeted import LOCAL

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FIRST = "\n\nRepeat the previous context exactly."
LATER = "\n\nRepeat the part of the previous context exactly, starting with"
BEFORE = 8  # tokens before a later chunk, which say where it begins
ASKED = 128  # the most tokens that ask for a repetition


def greatest(weights: Tensor) -> Tensor:
    """The most attention that any row of any query head gives a unit: [rows, kv_heads, group, units] -> [kv_heads,
    units]."""
    return weights.amax(0).amax(1)  # several times as fast as of both at once


@dataclass(frozen=True)
class KVzip(KeepPolicy):
    """Keep the units that are attended to most when the model is made to repeat its prompt, whatever is asked later.

    When the prompt is there, but for its last `local` tokens, it is read once more, `chunk` tokens at a time: behind
    the whole prompt come a sentence that asks for its repetition and then the chunk itself, as if the model had
    answered with it; what these rows leave is given up before the next chunk. A unit i of the chunk has the score

        max over rows r and the query heads of its KV head of softmax(s q_r.k)_i,   s: the scale of the layer's softmax

    with the softmax over the first `sink` units, those of the chunk, and those of the rows up to r. Then the layers *
    kv_heads * budget units with the highest scores stay, wherever they are: layers and heads keep different numbers,
    and what they do not keep takes no memory. The first `sink` units of every head are among them.

    With `normalised` (KVzip+) each of these, of query head h, is multiplied by ||W_O^h v_i|| and divided by ||x_r||,
    Euclidean norms: of what the output projection makes of the unit's value for that head, and of what enters the
    attention of row r, behind the layer's first norm.

    budget: units per KV head and layer, as the mean over all of them.
    chunk: tokens that are repeated at a time.
    sink: first units that stay in every head, inside the budget.
    local: last tokens of the prompt, which come after the choice and stay beside the budget, a question, say; None:
        100, no more than the budget, or all but one of a shorter prompt.
    asks: token ids that ask for a repetition; None: the paper's sentences, by the model's tokenizer, and, where the
        prompt has a user's turn, what its chat template closes that with and opens the answer.
    normalised: whether scores are those of KVzip+.

    The choice goes by no question, so one prompt may be forked and asked many. It costs rows: those of a second prompt,
    and of a sentence for every chunk, which count as computed. Until then all units are held, and those of one
    chunk's rows beside them. In layers with a sliding window what the window lets be seen stays, and beside the budget.

    With local=1 and no chat template this keeps what kvpress's KVzipPress keeps of the tokens before the last.

    Source: Kim et al., KVzip, arXiv:2505.23416, sections 3 and 4; sentences, chunks and sinks as in kvpress. KVzip+:
    Jegou and Jeblick, KVzap, arXiv:2601.07891, and kvpress 0.5.5 (`kvzip_plus_normalization`).
    """

    per_head = True

    budget: Count = 1024
    chunk: Count = 2048
    sink: Count = 4
    local: Count | None = None
    asks: tuple[Natural, ...] | None = None
    normalised: bool = False

    name = "kvzip"
    source = "arXiv:2505.23416, section 3"
    off: ClassVar = {"budget": 1_000_000_000, "asks": (5,)}
    trial: ClassVar = {"budget": 9, "chunk": 12, "sink": 2, "local": 4, "asks": (5, 6, 7)}

    def check(self) -> None:
        self.require(
            self.sink < self.budget,
            f"sink={self.sink} must be below budget={self.budget}, of which it is a part; otherwise no unit is kept "
            "for its score",
        )
        self.require(
            self.asks is None or 1 <= len(self.asks) <= ASKED,
            f"asks={self.asks!r} must be from 1 to {ASKED} token ids",
        )

    @property
    def ragged(self) -> bool:
        return True

    @property
    def score(self) -> Score:
        return Score("repeats", votes=greatest, sinks=self.sink, normalised=self.normalised)

    def pattern(self, layer: LayerContext) -> All:
        return HELD if layer.window is None else ALL

    def tail(self, prompt: int) -> int:
        """Last tokens of a prompt that stay beside the budget."""
        return min(min(LOCAL, self.budget) if self.local is None else self.local, prompt - 1)

    def next_eviction(self, known: int, prompt: int) -> int | None:
        end = prompt - self.tail(prompt)
        return end if known < end and end > self.budget else None

    def prepare(self, services: Services, ids: list[int] | None) -> None:
        shape = services.shape
        if ids is not None and self.local is not None and self.local >= len(ids):
            raise InputError(
                f"{self.name}: local={self.local} leaves nothing of a prompt of {len(ids)} tokens; use at most "
                f"local={len(ids) - 1}"
            )
        for seen in (ids or [], []):  # of a prompt that is shortened before, the user's turn may be missing
            self._check_asking(services, seen)
        if ids is not None:
            self._check_positions(shape, len(ids))

    def _check_positions(self, shape: ModelShape, prompt: int) -> None:
        if (used := self.positions_read(prompt)) > shape.max_positions:
            raise CapacityError(
                f"{self.name}: a prompt of {prompt} tokens is repeated chunk by chunk behind itself, which takes up to "
                f"{used} positions, more than the model's {shape.max_positions}; shorten it, or use a smaller chunk "
                f"than {self.chunk}"
            )

    def repeats(self, ids: list[int], services: Services) -> tuple[Repeat, ...]:
        if (end := self.next_eviction(0, len(ids))) is None:
            return ()
        first, later, then = self._asking(services, ids)
        found = []
        for start in range(0, end, self.chunk):
            stop = min(start + self.chunk, end)
            asked = [*later, *ids[start - min(start, BEFORE) : start]] if start else first
            found.append(Repeat((*asked, *then, *ids[start:stop]), start, stop))
        return tuple(found)

    def repeated(self, prompt: int) -> int:
        if (end := self.next_eviction(0, prompt)) is None:
            return 0
        return min(self.chunk, end) + (ASKED if self.asks is None else len(self.asks)) + BEFORE

    def _asking(self, services: Services, ids: list[int]) -> tuple[list[int], list[int], list[int]]:
        """What asks for the first chunk, and for another one, and what stands between that and the chunk."""
        if self.asks is not None:
            return list(self.asks), list(self.asks), []
        try:
            tokenizer = services.tokenizer
        except InputError as error:
            raise InputError(
                f"{self.name} asks for a repetition in words, and the model has no tokenizer; give the token ids that "
                f"ask for it: {self.name}(asks=[...])"
            ) from error
        first, later = (_encoded(tokenizer, text) for text in (FIRST, LATER))
        turn = closing(ids, tokenizer)
        then = _encoded(tokenizer, "\n") if turn is None else turn
        return first, later, then

    def _check_asking(self, services: Services, ids: list[int]) -> None:
        first, later, then = self._asking(services, ids)
        if (most := max(len(first), len(later)) + len(then)) > ASKED:
            raise InputError(
                f"{self.name}: to ask for a repetition takes {most} tokens of this tokenizer, more than {ASKED}; give "
                f"fewer: {self.name}(asks=[...])"
            )
        if (last := max((*first, *later, *then), default=0)) >= services.shape.vocab:
            raise InputError(
                f"{self.name} asks for a repetition with token {last}, which is beyond the model's "
                f"{services.shape.vocab}; give others: {self.name}(asks=[...])"
            )

    def select(self, cache: LayerCache, moment: Moment) -> Sequence[Tensor] | None:
        found = self.select_all([cache], moment.prompt)
        return None if found is None else found[0]

    def select_all(self, caches: Sequence[LayerCache], prompt: int) -> Sequence[Sequence[Tensor]] | None:
        """Of every layer and KV head the index of what stays; what has come behind the choice's units is among it."""
        heads, held = caches[0].kv_heads, caches[0].length
        beside = max(0, held - (prompt - self.tail(prompt)))
        if held - beside <= self.budget:
            return None
        scores = torch.cat([cache.live_scores() for cache in caches])
        most = torch.finfo(scores.dtype).max
        scores[:, : self.sink] = most
        scores[:, held - beside :] = most
        found = best_of_all(scores, (self.budget + beside) * len(scores))
        return [found[layer * heads : (layer + 1) * heads] for layer in range(len(caches))]

    def bound(self, prompt: int, new: int, layer: LayerContext) -> int:
        """The layer that keeps most may keep what the others do not."""
        tail = self.tail(prompt)
        kept = min(prompt - tail, layer.layers * self.budget)
        return max(prompt - tail + self.repeated(prompt), kept + tail + new)

    def longest(self, prompt: int, new: int, layer: LayerContext, kv_heads: int) -> int:
        tail = self.tail(prompt)
        kept = min(prompt - tail, layer.layers * kv_heads * self.budget)
        return max(prompt - tail + self.repeated(prompt), kept + tail + new)


def _encoded(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
