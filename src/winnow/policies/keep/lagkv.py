"""LagKV: tokens that stand out against those that follow stay in a cache of fixed size."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from winnow.parameters import Count, Natural
from winnow.policies.keep.base import Moment, Moments, Score
from winnow.policies.keep.budgeted import Budgeted, ByHead, ByLayer, Positions

FLAT = 1e-5  # of a channel's largest value: a range below it is rounding


@dataclass(frozen=True)
class LagKV(Budgeted):
    """Keep the units whose keys and values vary most in the frame of the units right behind them.

    Behind the first `sink` units that a KV head holds, the others are cut into partitions of `lag`, oldest first. In a
    partition that another one follows, each channel c of a key is brought into the range of the following one, x_c ->
    (x_c - min_c) / (max_c - min_c); the unit's figure is the standard deviation of that over the channels, made a
    share of its partition by a softmax. The mean of this for keys and for values ranks the units of a partition, and a
    unit's score is its rank in it, 0 to lag - 1, so that partitions lose alike; of equal ranks the newer stays. The
    sinks, the last whole partition and what is behind it always stay.

    budget: units per KV head that a layer keeps, in tokens; room for the sinks and two partitions at least.
    chunk: prompt tokens from one eviction to the next; None: a single one.
    sink: first units that stay, inside the budget.
    lag: units of a partition.
    local: last tokens of the prompt that stay beside the budget; None: 100, but no more than the budget and all but
        one of the prompt.
    positions: "original": keys are rotated at their places in the text, as in the authors' code; "compact": at their
        places among the units held, and a prompt may be longer than the model's positions.
    decode_chunk: new tokens from one eviction to the next; None: none is evicted after the prompt.
    by_layer: "uniform": every layer has the budget; "pyramid": budgets fall from the first layer to the last, with as
        many units in all (PyramidKV, arXiv:2406.02069).
    by_head: "uniform": every KV head has the layer's budget; "adaptive": the heads of a layer share theirs by their
        scores, a fifth of it being sure for each (Ada-KV, arXiv:2407.11550). What a head does not keep takes no memory.

    Keys are taken as rows attend to them. At every eviction all units that are held are cut and ranked anew, as by
    kvpress's BlockPress; the authors rank a partition once, when the next one is there, and leave what they kept of
    it. A channel that does not vary in the following partition counts 0, where the formula has no value. Ranks are as
    high in one head as in another, so heads that share a budget come to nearly equal shares. With
    chunk=None and local=0 this is kvpress's LagKVPress with its cross_scoring off, but for units of equal ranks, of
    which it keeps any.

    Source: Liang et al., LagKV, arXiv:2504.04704; the authors' code and kvpress.
    """

    budget: Count = 1024
    chunk: Count | None = 512
    sink: Natural = 4
    lag: Annotated[int, Ge(2)] = 128
    local: Natural | None = None
    positions: Positions = "original"
    decode_chunk: Count | None = None
    by_layer: ByLayer = "uniform"
    by_head: ByHead = "uniform"

    name = "lagkv"
    source = "arXiv:2504.04704"
    trial: ClassVar = {"budget": 9, "chunk": 6, "sink": 1, "lag": 3, "local": 4}

    def check(self) -> None:
        super().check()
        self.require(
            self.budget >= self._always,
            f"budget={self.budget} cannot hold sink={self.sink} units and two partitions of lag={self.lag}; use a "
            f"budget of at least {self._always}, or a smaller lag",
        )

    @property
    def _always(self) -> int:
        """The sinks, a partition, and as many units behind it as there may be."""
        return self.sink + 2 * self.lag

    def fixed(self, moment: Moment) -> int:
        return self._always

    @property
    def score(self) -> Score:
        return Score("units", held=self.ranks)

    def ranks(self, keys: Tensor, values: Tensor, queries: Moments | None) -> Tensor:
        """[kv_heads, units], `lag` for those that always stay. keys, values: [kv_heads, units, head_dim]."""
        kv_heads, units, width = keys.shape
        partitions = (units - self.sink) // self.lag
        found = keys.new_full((kv_heads, units), float(self.lag))
        if partitions < 2:
            return found
        stop = self.sink + partitions * self.lag
        cut = (each[:, self.sink : stop].reshape(kv_heads, partitions, self.lag, width) for each in (keys, values))
        share = torch.stack([outstanding(each) for each in cut]).mean(0)  # [kv_heads, partitions - 1, lag]
        found[:, self.sink : stop - self.lag] = share.argsort(dim=-1, stable=True).argsort(-1).flatten(1).float()
        return found


def outstanding(cut: Tensor) -> Tensor:
    """How much each unit varies in the frame of the following partition, as a share of its own: [kv_heads,
    partitions - 1, lag]. cut: [kv_heads, partitions, lag, head_dim]."""
    least, most = cut[:, 1:].amin(2, keepdim=True), cut[:, 1:].amax(2, keepdim=True)
    extent = most - least
    flat = extent <= FLAT * torch.maximum(most.abs(), least.abs())
    framed = ((cut[:, :-1] - least) / extent.masked_fill(flat, 1.0)).masked_fill(flat, 0.0)
    return framed.std(-1).double().softmax(-1)
