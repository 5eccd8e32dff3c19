"""Scissorhands: what recent rows mostly passed over leaves a cache of fixed size."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from winnow.parameters import Count, Natural
from winnow.policies.compute.base import Deep
from winnow.policies.keep.base import Moment, Score
from winnow.policies.keep.budgeted import Budgeted, ByHead, ByLayer, Positions


@dataclass(frozen=True)
class Scissorhands(Budgeted):
    """Drop the units that the last rows most often gave less than an even share of their attention.

    A row that sees t units passes over those to which it gives less than 1/t of its attention, as the mean over the
    query heads of a KV head. The units that most of the last `window` rows have passed over go; of equal ones, the
    older.

    budget: units per KV head that a layer keeps, in tokens.
    chunk: prompt tokens from one eviction to the next; None: a single one, with full attention over the prompt before
        it.
    window: last rows before an eviction whose attention counts; where the eviction before is nearer than that, only
        the rows since then.
    recent: newest units that always stay, inside the budget.
    local: last tokens of the prompt that stay beside the budget; None: 100, but no more than the budget and all but
        one of the prompt.
    positions: "compact": rope positions are places among the kept units, and a prompt may be longer than the model's
        positions; "original": places in the text.
    decode_chunk: new tokens from one eviction to the next; None: none is evicted after the prompt.
    by_layer: "uniform": every layer has the budget; "pyramid": budgets fall from the first layer to the last, with as
        many units in all (PyramidKV, arXiv:2406.02069).
    by_head: "uniform": every KV head has the layer's budget; "adaptive": the heads of a layer share theirs by their
        scores, a fifth of it being sure for each (Ada-KV, arXiv:2407.11550). What a head does not keep takes no memory.

    The count, its threshold, the window and the recent units are as its paper describes. Our reading is the rest: how
    grouped query heads are joined; that a row counts for the units that it sees only, so that newer units have fewer
    rows against them; that the older of equal units goes; and that `chunk` tells when units are dropped, all beyond the
    budget at once, where the paper drops a fixed part of a full cache. Every layer has the same budget here; the paper
    gives more to layers whose attention moves more.

    Source: Liu et al., Scissorhands, arXiv:2305.17118, section 4 and algorithm 2.
    """

    budget: Count = 1024
    chunk: Count | None = 512
    window: Count = 400
    recent: Natural = 10
    local: Natural | None = None
    positions: Positions = "original"
    decode_chunk: Count | None = None
    by_layer: ByLayer = "uniform"
    by_head: ByHead = "uniform"

    name = "scissorhands"
    source = "arXiv:2305.17118, section 4"
    trial: ClassVar = {"budget": 9, "chunk": 6, "window": 5, "recent": 2, "local": 4}

    def check(self) -> None:
        super().check()
        self.require(
            self.recent < self.budget,
            f"recent={self.recent} must be below budget={self.budget}, of which it is a part; otherwise no unit is "
            "kept for the attention it gets",
        )

    @property
    def score(self) -> Score:
        return Score("attention", voters=self.window, votes=passed_over)

    def protected(self, moment: Moment) -> int:
        return self.recent

    def prefix_stable(self, n: int, deep: Deep) -> int:
        return self.last_chunk(n, deep)


def passed_over(weights: Tensor) -> Tensor:
    """How many rows give a unit less than an even share, negative. weights, result: as of `attention_sums`."""
    share = weights.mean(2)  # [rows, kv_heads, units]
    given = share > 0
    # A weight may round to 0 although the unit is seen; what a row sees ends at the last unit it gives any.
    seen = given.flip(-1).cummax(-1).values.flip(-1)
    low = share * given.sum(-1, keepdim=True) < 1
    return -(low & seen).sum(0).float()
