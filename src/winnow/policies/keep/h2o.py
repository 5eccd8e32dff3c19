"""H2O: what has been attended to most, and what is new, stays in a cache of fixed size."""

from dataclasses import dataclass
from typing import ClassVar

from winnow.parameters import Count, Natural
from winnow.policies.compute.base import Deep
from winnow.policies.keep.base import Moment, Score
from winnow.policies.keep.budgeted import Budgeted, ByHead, ByLayer, Positions, Weigh


@dataclass(frozen=True)
class H2O(Budgeted):
    """Keep the units that have received most attention so far (heavy hitters), and the newest ones.

    A unit's score is the sum of the attention weights that all rows up to now have given it, as the mean over the query
    heads of its group; it grows for as long as the unit stays, so early units have had more rows to collect from.

    budget: units per KV head that a layer keeps, in tokens.
    chunk: prompt tokens from one eviction to the next; None: a single one, with full attention over the prompt before
        it, as in the authors' code.
    recent: newest units that always stay, inside the budget; None: half of the budget, as in the paper.
    local: last tokens of the prompt that stay beside the budget; None: 100, but no more than the budget and all but
        one of the prompt.
    positions: "compact": rope positions are places among the kept units, and a prompt may be longer than the model's
        positions; "original": places in the text. The authors' code has both.
    decode_chunk: new tokens from one eviction to the next, 1 in the authors' code; None: none is evicted after the
        prompt. At the first of these evictions the `local` tokens become units like any others.
    by_layer: "uniform": every layer has the budget; "pyramid": budgets fall from the first layer to the last, with as
        many units in all (PyramidKV, arXiv:2406.02069).
    by_head: "uniform": every KV head has the layer's budget; "adaptive": the heads of a layer share theirs by their
        scores, a fifth of it being sure for each (Ada-KV, arXiv:2407.11550). What a head does not keep takes no memory;
        every eviction moves all that a layer keeps, so give decode steps a larger `decode_chunk`.
    weigh: "uniform": units stay by their scores; "output": half of them do, and the others by (score + 1e-4) times the
        norm of what the output projection makes of their values (CriticalKV, arXiv:2502.03805). Every eviction takes
        that of all that a layer keeps, so give decode steps a larger `decode_chunk` here too.

    With chunk=None and local=0 this is the authors' form; they score every query head by itself and do not take grouped
    queries. The attention weights of a prompt's rows are computed a second time, for their sums.

    Source: Zhang et al., H2O, arXiv:2306.14048, section 4 and algorithm 1; the authors' code.
    """

    budget: Count = 1024
    chunk: Count | None = 512
    recent: Natural | None = None
    local: Natural | None = None
    positions: Positions = "original"
    decode_chunk: Count | None = 1
    by_layer: ByLayer = "uniform"
    by_head: ByHead = "uniform"
    weigh: Weigh = "uniform"

    name = "h2o"
    source = "arXiv:2306.14048, section 4"
    trial: ClassVar = {"budget": 9, "chunk": 6, "recent": 4, "local": 4}

    def check(self) -> None:
        super().check()
        if self.recent is not None:
            self.require(
                self.recent < self.budget,
                f"recent={self.recent} must be below budget={self.budget}, of which it is a part; otherwise no unit is "
                "kept for its score",
            )

    @property
    def score(self) -> Score:
        return Score("attention", outputs=self.weigh == "output")

    def protected(self, moment: Moment) -> int:
        return self.budget // 2 if self.recent is None else self.recent

    def prefix_stable(self, n: int, deep: Deep) -> int:
        """Nothing of a prompt from which no unit is ever evicted, since its rows do not vote."""
        return 0 if self.voting_from(0, deep.prompt) is None else self.last_chunk(n, deep)
