"""A trained indexer: small heads say from hidden states which units a step reads, the same for all heads of a layer."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from winnow.cache.view import View
from winnow.parameters import Count, Natural
from winnow.policies.base import ModelShape, Services
from winnow.policies.keep.best import best
from winnow.policies.read.base import Reader, ReadPolicy, Row, TokenIndex

ROOM = 256  # tokens for whose keys memory is taken at a time


@dataclass(frozen=True)
class Indexer(ReadPolicy):
    """Read the units that a small trained network, the layer's indexer, ranks highest for the current token.

    budget: units per KV head and layer that a step reads at most, the first `sink` and the last `recent` among them.
    sink: first units, always read. recent: last units, always read, the current one included.
    trained: a directory in which `winnow train indexer` has written indexers of the model; None: those that the LLM was
        given.

    A token t enters a layer as the hidden state h_t, of which x_t is the RMS norm. The layer's indexer has H heads of d
    values, and for every token one key k_s = W_k x_s, shared by its heads. The token at t ranks every s before it by

        I(t, s) = (H d)^-0.5 sum over heads j of w_j relu(q_j . k_s),   q = W_q x_t,  w = W_w x_t

    and all heads of the layer read the `budget` units with the highest I; where KV heads keep different tokens, each of
    its own. Of tokens that are equal but for rounding the newer is read.

    With n units a layer without a sliding window reads min(n, budget) per KV head; one with a window reads all that it
    holds, and has no indexer. `aux_bytes` counts a key of d values, in the model's dtype, for every token of the text
    in each layer that has an indexer, whatever is kept of its units, with room for whole multiples of 256 tokens; d is
    at most `head_dim`, by which memory is reserved. Ranking n tokens reads n keys, which are not among `units_read`: as
    many bytes as d n / (2 head_dim) units of one KV head.

    The first units that `streaming` keeps are read besides. All tokens have to enter all layers. DeepSeek's model is
    trained to read what its indexer chooses; this one is frozen. Their code rotates a part of queries and keys, and
    norms keys; here recent units are read in any case, and what enters is normed.

    Source: DeepSeek-AI, DeepSeek-V3.2, arXiv:2512.02556, section 2.1 (DeepSeek Sparse Attention), equations 1 and 2.
    """

    budget: Count = 1024
    sink: Natural = 4
    recent: Count = 64
    trained: str | None = None

    name = "indexer"
    source = "arXiv:2512.02556, section 2.1"
    by_rows = True
    off: ClassVar = {"budget": 1_000_000_000}
    trial: ClassVar = {"budget": 7, "sink": 1, "recent": 3}
    loads: ClassVar = ("trained",)

    def check(self) -> None:
        sure = self.sink + self.recent
        self.require(
            sure < self.budget,
            f"sink={self.sink} and recent={self.recent} leave nothing of budget={self.budget} to be chosen; use at "
            f"least budget={sure + 1}",
        )
        self.require(self.trained != "", "trained='' is no directory; leave it out for those that the LLM was given")

    def prepare(self, services: Services, ids: list[int] | None) -> None:
        services.indexers(self.trained)

    def bound(self, shape: ModelShape, prompt: int, new: int) -> int:
        return shape.windows.count(None) * room(prompt + new) * shape.head_dim * shape.element_bytes

    def reader(self, shape: ModelShape, services: Services, prompt: int) -> Reader:
        return IndexerReader(self, services.indexers(self.trained), prompt)


def room(tokens: int) -> int:
    """For the keys of how many tokens there is memory once so many have come."""
    return math.ceil(tokens / ROOM) * ROOM


class IndexerReader(Reader):
    """The keys of every layer that has an indexer, by position."""

    def __init__(self, policy: Indexer, indexers: TokenIndex, prompt: int) -> None:
        self._policy, self.indexers, self._prompt = policy, indexers, prompt
        self._keys: dict[int, Tensor] = {}  # [room, dim]
        self._ranked: Tensor | None = None  # [tokens], for the row that has just entered a layer

    def entered(self, layer: int, positions: Tensor, hidden: Tensor, *, decode: bool) -> None:
        if layer not in self.indexers.layers:
            return
        known = int(positions[-1]) + 1
        keys = self._with_room(layer, max(known, self._prompt), hidden)
        keys[positions] = self.indexers.keys(layer, hidden).to(keys.dtype)
        if decode and known > self._policy.budget:
            self._ranked = self.indexers.scores(layer, hidden[-1:], keys[:known])[0]

    def select(self, row: Row, views: list[View]) -> Sequence[View]:
        ranked, self._ranked = self._ranked, None
        *others, view = views
        if ranked is None or view.units <= self._policy.budget:
            return views
        scores = ranked[view.positions].view(-1, view.units)
        sure = torch.finfo(scores.dtype).max
        scores[:, : self._policy.sink] = sure
        scores[:, -self._policy.recent :] = sure
        index = best(scores, self._policy.budget, cancels=True).expand(view.kv_heads, -1).contiguous()
        return [*others, row.ready(view).chosen(index)]

    def fork(self) -> "Reader":
        twin = copy.copy(self)
        twin._keys = {layer: keys.clone() for layer, keys in self._keys.items()}
        return twin

    @property
    def nbytes(self) -> int:
        return sum(keys.nbytes for keys in self._keys.values())

    def _with_room(self, layer: int, tokens: int, hidden: Tensor) -> Tensor:
        """The keys of a layer, with room for so many tokens; of none that has not come is anything known."""
        held = self._keys.get(layer)
        if held is None or tokens > len(held):
            wider = hidden.new_zeros(room(tokens), self.indexers.dim)
            if held is not None:
                wider[: len(held)] = held
            self._keys[layer] = held = wider
        return held
