"""What a search came to: the frontier, the finalists, and the plan to use or the one that comes nearest."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from winnow.evaluation.compare import Row, finished, summarise, with_full
from winnow.plan import Plan
from winnow.tune.frontier import MIB, Figures
from winnow.tune.limits import Limits
from winnow.tune.search import Tuning


@dataclass(frozen=True)
class Finalist:
    """A plan that was confirmed, or comes near to that.

    searched, confirmed: its figures on the two parts of the prompts. timed: how it answered the second, beside full
    attention; None if that was not reached. answer_s: median TTFT + (mean tokens of full attention's answers - 1) *
    median TPOT. missed: a phrase per limit that it does not keep to. off: the sum of the natural logarithms of the
    factors by which it misses them, by the worse part, with means for KL and agreement. keeps: whether it
    keeps to all limits, and was measured on all prompts and timed.
    """

    plan: str
    searched: Figures
    confirmed: Figures | None
    timed: Row | None
    answer_s: float | None
    missed: tuple[str, ...]
    off: float
    keeps: bool


@dataclass(frozen=True)
class Result:
    """What there is of a search, finished or not.

    tried: every plan, on as many prompts of the search as it got to. frontier: of those that got farthest, the plans
    that no other beats in KL, rows, units and memory. recommended: of
    the finalists that keep to all limits, on both parts and timed, the one with the least answer_s. closest: with no
    such plan, the finalist, or else the plan, that is least off.
    """

    limits: Limits
    tried: list[Figures]
    frontier: list[Figures]
    finalists: list[Finalist]
    recommended: Finalist | None
    closest: Finalist | None
    search_prompts: int
    confirmation_prompts: int
    measurements: int
    elapsed_s: float
    ended: tuple[str, ...]
    skipped: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON; bounds that one prompt cannot give are None."""
        return {name: _finite(value) for name, value in asdict(self).items()}


def result_of(tuning: Tuning) -> Result:
    """The result as far as the search got."""
    rows, tokens = _timed(tuning)
    finalists = [_finalist(tuning, plan, rows, tokens) for plan in with_full(tuning.finalists) if tuning.searched(plan)]
    recommended = min((each for each in finalists if each.keeps), key=lambda each: each.answer_s or 0.0, default=None)
    others = finalists or [_finalist(tuning, plan, rows, tokens) for plan in tuning.pool if tuning.searched(plan)]
    return Result(
        limits=tuning.limits,
        tried=[row for plan in tuning.tried.values() if (row := tuning.searched(plan)) is not None],
        frontier=tuning.frontier(),
        finalists=finalists,
        recommended=recommended,
        closest=None if recommended else min(others, key=lambda each: each.off, default=None),
        search_prompts=len(tuning.parts.search),
        confirmation_prompts=len(tuning.parts.confirmation),
        measurements=len(tuning.ledger),
        elapsed_s=tuning.clock.elapsed_s,
        ended=tuple(tuning.ended),
        skipped=tuple(tuning.skipped),
    )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if value == math.inf else value


def _timed(tuning: Tuning) -> tuple[dict[str, Row], float]:
    """The row of each plan over the prompts that all have answered, and the mean tokens of full attention's answers."""
    records = finished(tuning.records, len(with_full(tuning.finalists)))
    if not records:
        return {}, 0.0
    answers = [record.stats.new_tokens for record in records if record.plan == "full"]
    return {row.plan: row for row in summarise(records)}, sum(answers) / len(answers)


def _finalist(tuning: Tuning, plan: Plan, rows: dict[str, Row], tokens: float) -> Finalist:
    searched, confirmed = tuning.searched(plan), tuning.confirmed(plan)
    assert searched is not None
    parts = [part for part in (searched, confirmed) if part is not None]
    row = rows.get(str(plan))
    timed: dict[str, float] = {}
    answer_s = None
    if row is not None:
        # An answer of its own may be longer than what it was compared on, and hold more.
        timed["total_mib"] = max(row.total_bytes / MIB, *(part.total_mib for part in parts))
        timed["ttft_s"] = answer_s = row.ttft_s.median
        if row.tpot_s is not None:
            timed["tpot_s"] = row.tpot_s.median
            answer_s += (tokens - 1) * row.tpot_s.median
    limits = tuning.limits
    off = max(sum(limits.excess({**part.likely, **timed}).values()) for part in parts)
    missed = {
        phrase: None
        for part in parts
        for phrase in limits.missed({**part.likely, **timed})
        or [f"90 % bound of {each}" for each in limits.missed({**part.careful, **timed})]
    }
    keeps = tuning.holds(plan) and row is not None and not missed
    return Finalist(str(plan), searched, confirmed, row, answer_s, tuple(missed), off, keeps)
