"""Locret: trained heads decide what stays in a cache of fixed size."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from winnow.parameters import Count, Natural
from winnow.policies.base import Services
from winnow.policies.compute.base import Deep
from winnow.policies.keep.base import Moment, UnitScorer
from winnow.policies.keep.budgeted import SEVERAL_EVICTIONS, Budgeted, ByHead, ByLayer, Positions
from winnow.policies.keep.scored_by_heads import ScoredByHeads


@dataclass(frozen=True)
class Locret(ScoredByHeads, Budgeted):
    """Keep the units that small trained heads expect to be attended to most (causal importance scores).

    A unit's score is computed once, from the projections of its own token, and stored with it. After every chunk each
    KV head of each layer keeps its `budget` best units; but for the last time, its newest `stabilizers` are among them
    whatever their score.

    budget: units per KV head that a layer keeps, in tokens.
    chunk: prompt tokens from one eviction to the next; None: a single one.
    sink: first units that stay in every head whatever their score, inside the budget; 0: none, as in the paper. The
        authors' code has a line for it that is switched off.
    stabilizers: newest units that stay while the prompt goes on, inside the budget; None: a quarter of the budget.
    local: last tokens of the prompt that stay beside the budget; None: 100, but no more than the budget and all but
        one of the prompt.
    positions: "compact": rope positions are places among the kept units, as in the authors' code, and a prompt may be
        longer than the model's positions; "original": places in the text.
    heads: a directory or bundled name of retaining heads; None: the LLM's own, or the bundled ones of this model.
    decode_chunk: new tokens from one eviction to the next; None: none is evicted after the prompt, as in the paper.
    by_layer: "uniform": every layer has the budget; "pyramid": budgets fall from the first layer to the last, with as
        many units in all (PyramidKV, arXiv:2406.02069).
    by_head: "uniform": every KV head has the layer's budget; "adaptive": the heads of a layer share theirs by their
        scores, a fifth of it being sure for each (Ada-KV, arXiv:2407.11550). What a head does not keep takes no memory.

    Source: Huang et al., Locret, arXiv:2410.01805, section 3 and algorithm 1; what the paper leaves open follows the
    authors' code.
    """

    budget: Count = 1024
    chunk: Count | None = 512
    sink: Natural = 4
    stabilizers: Natural | None = None
    local: Natural | None = None
    positions: Positions = "compact"
    heads: str | None = None
    decode_chunk: Count | None = None
    by_layer: ByLayer = "uniform"
    by_head: ByHead = "uniform"

    name = "locret"
    source = "arXiv:2410.01805, section 3"
    trial: ClassVar = {"budget": 9, "chunk": 6, "sink": 1, "stabilizers": 3, "local": 4}
    matters: ClassVar = {"stabilizers": SEVERAL_EVICTIONS}
    loads: ClassVar = ("heads",)

    def check(self) -> None:
        super().check()
        self.require(
            self.sink + self._stabilizers < self.budget,
            f"sink={self.sink} and stabilizers={self._stabilizers} must leave a part of budget={self.budget}; "
            "otherwise no unit is kept for its score",
        )

    def protected(self, moment: Moment) -> int:
        return 0 if self.prompt_ends(moment) else self._stabilizers

    def fixed(self, moment: Moment) -> int:
        return self.sink + self.protected(moment)

    def ranked(self, scores: Tensor) -> Tensor:
        scores[:, : self.sink] = torch.finfo(scores.dtype).max
        return scores

    @property
    def _stabilizers(self) -> int:
        return self.budget // 4 if self.stabilizers is None else self.stabilizers

    def prefix_stable(self, n: int, deep: Deep) -> int:
        return self.last_chunk(n, deep)


@dataclass(frozen=True)
class RandomHeads(Locret):
    """The untrained control: Locret with random heads.

    width: of their hidden layer. seed: of their weights; otherwise as `locret`.

    Source: Huang et al., Locret, arXiv:2410.01805, appendix B.
    """

    width: Count = 256
    seed: int = 0

    name = "random_heads"
    takes: ClassVar = "memory for heads of its own, which stay"
    source = "arXiv:2410.01805, appendix B"
    trial: ClassVar = {**Locret.trial, "by_layer": "pyramid"}

    def check(self) -> None:
        super().check()
        self.require(self.heads is None, "heads are random here; leave heads out, or use locret(heads=...)")
        self.require(0 <= self.seed < 2**63, f"seed={self.seed} must be from 0 to {2**63 - 1}")

    def scorer(self, services: Services) -> UnitScorer:
        return services.random_heads(self.width, self.seed)
