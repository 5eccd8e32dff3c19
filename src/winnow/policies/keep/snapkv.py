"""SnapKV: the last rows before an eviction vote on what stays in a cache of fixed size."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor
from torch.nn.functional import avg_pool1d

from winnow.kernels.select import highest_near
from winnow.parameters import Count, Natural, Where
from winnow.policies.compute.base import Deep
from winnow.policies.keep.base import Moment, Score
from winnow.policies.keep.budgeted import Budgeted, ByHead, ByLayer, Positions, Weigh


@dataclass(frozen=True)
class SnapKV(Budgeted):
    """Keep the units that the last rows before an eviction attend to most, with their neighbours, and those rows' own.

    The attention weights of the last `window` rows are averaged per unit and pooled along the units of each KV head,
    and the best `budget - window` units before the window stay beside its own.

    budget: units per KV head that a layer keeps, the window's included, in tokens.
    chunk: prompt tokens from one eviction to the next; None: a single one, with full attention over the prompt before
        it, as in the paper.
    window: last rows before an eviction, which vote and whose units stay; where the eviction before is nearer than
        that, only the rows since then vote.
    kernel: units that are pooled, an odd count: a unit and as many neighbours on either side. 1: none.
    pooling: "avg": their mean, 0 counting for units beyond either end; "max": the best of them.
    local: last tokens of the prompt that stay beside the budget, and come after the vote; None: 100, but no more
        than the budget and all but one of the prompt. With 0 and a question at the end of the prompt, the question
        votes.
    positions: "compact": rope positions are places among the kept units, and a prompt may be longer than the model's
        positions; "original": places in the text, as in the authors' code.
    decode_chunk: new tokens from one eviction to the next; None: none is evicted after the prompt, as in the paper.
    by_layer: "uniform": every layer has the budget; "pyramid": budgets fall from the first layer to the last, with as
        many units in all (PyramidKV, arXiv:2406.02069).
    by_head: "uniform": every KV head has the layer's budget; "adaptive": the heads of a layer share theirs by their
        scores, a fifth of it being sure for each (Ada-KV, arXiv:2407.11550). What a head does not keep takes no memory.
    weigh: "uniform": units stay by their scores; "output": half of them do, and the others by (score + 1e-4) times the
        norm of what the output projection makes of their values (CriticalKV, arXiv:2502.03805).

    The votes of the query heads that share a KV head are averaged before they are pooled, and there is one selection
    per KV head; the authors' code selects per query head, and so stores keys and values once per query head. It evicts
    once, when the whole prompt is there: chunk=None and local=0.

    Source: Li et al., SnapKV, arXiv:2404.14469, section 4; the authors' code.
    """

    budget: Count = 1024
    chunk: Count | None = None
    window: Count = 64
    kernel: int = 31
    pooling: Literal["avg", "max"] = "max"
    local: Natural | None = 0
    positions: Positions = "original"
    decode_chunk: Count | None = None
    by_layer: ByLayer = "uniform"
    by_head: ByHead = "uniform"
    weigh: Weigh = "uniform"

    name = "snapkv"
    source = "arXiv:2404.14469, section 4"
    trial: ClassVar = {"budget": 9, "chunk": 6, "window": 4, "kernel": 3, "local": 4}
    matters: ClassVar = {"pooling": Where("a kernel above 1", lambda policy: policy.kernel > 1)}

    def check(self) -> None:
        super().check()
        self.require(
            self.window < self.budget,
            f"window={self.window} must be below budget={self.budget}, of which its units are a part; otherwise none "
            "is kept for its votes",
        )
        self.require(
            self.kernel >= 1 and self.kernel % 2 == 1,
            f"kernel={self.kernel} must be odd and at least 1, for as many neighbours on either side; "
            f"use {max(1, self.kernel + 1)}",
        )

    @property
    def score(self) -> Score:
        return Score("attention", voters=self.window, outputs=self.weigh == "output")

    def protected(self, moment: Moment) -> int:
        return self.window

    def prefix_stable(self, n: int, deep: Deep) -> int:
        return self.last_chunk(n, deep)

    def ranked(self, scores: Tensor) -> Tensor:
        before = slice(0, scores.shape[1] - self.window)
        scores[:, before] = pooled(scores[:, before] / self.window, self.kernel, self.pooling)
        return scores


def pooled(votes: Tensor, kernel: int, pooling: Literal["avg", "max"]) -> Tensor:
    """[kv_heads, units] float32 -> the same shape: the mean or the maximum over each unit and its neighbours."""
    if pooling == "max":
        return highest_near(votes, kernel // 2)
    reach = min(kernel // 2, votes.shape[1])  # beyond are none, and a kernel takes time by its size
    return avg_pool1d(votes, 2 * reach + 1, stride=1, padding=reach) * ((2 * reach + 1) / kernel)
