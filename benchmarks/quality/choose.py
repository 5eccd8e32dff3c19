"""Which setting of a policy goes to the test: from records of validation, by one rule for all policies."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.quality.arms import Grid, Setting
from benchmarks.quality.figures import ALL, ScoreRow, WindowRow, score_rows, window_rows
from benchmarks.quality.records import Record
from winnow.errors import InputError

CLOSE = 0.02  # of a score: settings that are so close to the best of a policy are told apart by their KL
RULE = (
    "A setting fits where what it counts is at most the cost's share, over all questions and over all windows. Of a "
    f"policy's settings that fit, those within {100 * CLOSE:.0f} points of its best mean score are left, and of these "
    "the one with the least KL is chosen."
)


@dataclass(frozen=True)
class Measured:
    """A setting over all that was measured of it. shares: of each count the larger, of questions and of windows."""

    setting: Setting
    shares: dict[str, float]
    difference: float | None
    kl: float | None


@dataclass(frozen=True)
class Choice:
    """The setting of a policy at a cost.

    plan, name: the arm's; at_most, shares: of full attention's, by what is counted; tried, fitting: settings that were
    measured, and those of them at or under `at_most`. difference: of the mean score from full attention's; kl: nats;
    None: not measured.
    """

    plan: str
    name: str
    policy: str
    cost: str
    at_most: dict[str, float]
    shares: dict[str, float]
    tried: int
    fitting: int
    difference: float | None
    kl: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def choose(records: Sequence[Record], grid: Grid) -> tuple[list[Choice], list[str]]:
    """The choices by cost and policy, and a line for each policy that has none, or was tried with fewer settings."""
    scores = [row for row in score_rows(records) if row.task == ALL] or score_rows(records)
    windows = [row for row in window_rows(records) if row.domain == ALL] or window_rows(records)
    if not scores and not windows:
        raise InputError("there are no records of answers or windows to choose by")
    made: list[Choice] = []
    told: list[str] = []
    for cost, at_most in grid.caps.items():
        for policy in grid.policies(cost):
            settings = [each for each in grid.of(cost) if each.policy == policy]
            tried = [m for each in settings if (m := _measured(each, [*at_most], scores, windows)) is not None]
            fitting = [each for each in tried if all(each.shares[count] <= at_most[count] for count in at_most)]
            if tried and len(tried) < grid.tries[cost]:
                told.append(f"{policy}, {cost}: {len(tried)} of {grid.tries[cost]} settings were measured")
            if fitting:
                made.append(_choice(_best(fitting), at_most, len(tried), len(fitting)))
            elif not tried:
                told.append(f"{policy}, {cost}: none of {grid.tries[cost]} settings was measured")
            else:
                least = {count: min(each.shares[count] for each in tried) for count in at_most}
                told.append(
                    f"{policy}, {cost}: none of {len(tried)} settings fits; "
                    + ", ".join(
                        f"{count} at least {least[count]:.3f}, at most {most:g}" for count, most in at_most.items()
                    )
                )
    return made, told


def _best(fitting: Sequence[Measured]) -> Measured:
    """See `RULE`."""
    best = max(each.difference or 0.0 for each in fitting)
    close = [each for each in fitting if (each.difference or 0.0) >= best - CLOSE]
    return min(close, key=lambda each: each.kl or 0.0)


def _measured(
    setting: Setting, counts: Sequence[str], scores: Sequence[ScoreRow], windows: Sequence[WindowRow]
) -> Measured | None:
    """Means over lengths; None where nothing was measured."""
    mine = [row for row in scores if row.arm == setting.arm.name]
    seen = [row for row in windows if row.arm == setting.arm.name]
    shares = {
        count: max(found)
        for count in counts
        if (found := [share for row in (*mine, *seen) if (share := row.costs[count]) is not None])
    }
    if len(shares) < len(counts):
        return None
    difference = statistics.fmean(row.difference.mean for row in mine) if mine else None
    kl = statistics.fmean(row.kl.mean for row in seen) if seen else None
    return Measured(setting, shares, difference, kl)


def _choice(best: Measured, at_most: dict[str, float], tried: int, fitting: int) -> Choice:
    setting = best.setting
    return Choice(
        setting.arm.text, setting.arm.name, setting.policy, setting.cost, at_most, best.shares, tried, fitting,
        best.difference, best.kl,
    )  # fmt: skip
