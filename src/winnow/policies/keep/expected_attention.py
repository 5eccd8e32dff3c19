"""Expected Attention: what the queries to come are likely to attend to stays in a cache of fixed size."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from winnow.parameters import Count, Natural
from winnow.policies.base import ModelShape
from winnow.policies.keep.base import Moment, Moments, Queries, Score
from winnow.policies.keep.budgeted import Budgeted, ByHead, ByLayer, Positions, Weigh

AHEAD = 512  # kvpress's default


@dataclass(frozen=True)
class ExpectedAttention(Budgeted):
    """Keep the units that queries like those seen would attend to most from the positions to come, times what they say.

    Of the queries with which rows have come to a layer so far, before rotation, the mean mu and the covariance S are
    known, per query head; rows at the first `sink` positions are left out as outliers. R is the rotation of the next
    `ahead` rope positions, averaged. Were queries normal, E[exp(s q.k)] would be the exponential of

        z = s (R mu).k + s^2 / 2 k.(R S R^T) k,   s: the scale of the layer's softmax, 1 / sqrt(head_dim) for most

    A softmax of z over the units behind the first `sink` that a KV head holds, as the mean over its query heads, times
    ||v||, is a unit's score; with weigh="output" ||v|| is left out, since what the output projection makes of v takes
    its place. The first `sink` units always stay.

    budget: units per KV head that a layer keeps, in tokens.
    chunk: prompt tokens from one eviction to the next; None: a single one.
    sink: first units that stay, inside the budget, and first positions whose queries do not count.
    ahead: rope positions that are averaged over.
    local: last tokens of the prompt that stay beside the budget; None: 100, but no more than the budget and all but
        one of the prompt.
    positions: "original": keys are rotated at their places in the text, and the next positions are those behind the
        last token; "compact": at their places among the units held, the next ones being behind these, and a prompt may
        be longer than the model's positions.
    decode_chunk: new tokens from one eviction to the next; None: none is evicted after the prompt. Then the queries
        of new tokens count with the prompt's.
    by_layer: "uniform": every layer has the budget; "pyramid": budgets fall from the first layer to the last, with as
        many units in all (PyramidKV, arXiv:2406.02069).
    by_head: "uniform": every KV head has the layer's budget; "adaptive": the heads of a layer share theirs by their
        scores, a fifth of it being sure for each (Ada-KV, arXiv:2407.11550). What a head does not keep takes no memory.
    weigh: "uniform": units stay by their scores; "output": half of them do, and the others by (score + 1e-4) times the
        norm of what the output projection makes of their values (CriticalKV, arXiv:2502.03805).

    Mean and covariance grow with the rows until the last eviction, whatever has been evicted meanwhile, and go with a
    fork; they take 4 (d + d^2) bytes per query head and layer. A row that is computed later, as lazyllm's revived ones
    are, counts when it is computed. Scores are made anew at every eviction, of keys as rows attend to them. A soft cap
    of the logits is left out of account.

    With chunk=None and local=0 this is kvpress's ExpectedAttentionPress with its defaults.

    Source: Devoto et al., Expected Attention, arXiv:2510.00636; kvpress.
    """

    budget: Count = 1024
    chunk: Count | None = 512
    sink: Natural = 4
    ahead: Count = AHEAD
    local: Natural | None = None
    positions: Positions = "original"
    decode_chunk: Count | None = None
    by_layer: ByLayer = "uniform"
    by_head: ByHead = "uniform"
    weigh: Weigh = "uniform"

    name = "expected_attention"
    source = "arXiv:2510.00636"
    trial: ClassVar = {"budget": 9, "chunk": 6, "sink": 2, "ahead": 16, "local": 4}

    def check(self) -> None:
        super().check()
        self.require(
            self.sink < self.budget,
            f"sink={self.sink} must be below budget={self.budget}, of which it is a part; otherwise no unit is kept "
            "for its score",
        )

    def validate(self, shape: ModelShape) -> None:
        most = max(AHEAD, shape.max_positions)
        self.require(self.ahead <= most, f"ahead={self.ahead} is more than the model has positions; use up to {most}")

    @property
    def score(self) -> Score:
        return Score(
            "units", held=self.expected, queries=Queries(self.sink, self.ahead), outputs=self.weigh == "output"
        )

    def fixed(self, moment: Moment) -> int:
        return self.sink

    def expected(self, keys: Tensor, values: Tensor, queries: Moments | None) -> Tensor:
        """[kv_heads, units]. keys, values: [kv_heads, units, head_dim]."""
        assert queries is not None
        heads, units, width = keys.shape
        means = queries.mean.view(heads, -1, width)
        covariances = queries.covariance.view(heads, -1, width, width)
        found = keys.new_full((heads, units), torch.finfo(keys.dtype).max)
        for head in range(heads):  # what is made of a unit is as wide as all its query heads
            rest = keys[head, self.sink :]
            logits = means[head] @ rest.T + ((rest @ covariances[head]) * rest).sum(-1) / 2  # [group, units]
            shares = logits.softmax(-1).mean(0)
            found[head, self.sink :] = (
                shares if self.weigh == "output" else shares * values[head, self.sink :].norm(dim=-1)
            )
        return found
