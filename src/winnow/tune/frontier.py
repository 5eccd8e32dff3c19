"""From measurements to figures per plan, and the plans that no other beats in all of them."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from winnow.tune.measure import Measurement

# One-sided 90 % quantiles of Student's t, by degrees of freedom from 1 on, and the normal one, which they approach.
T90 = (3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397, 1.383, 1.372, 1.363, 1.356, 1.350, 1.345, 1.341)
Z90 = 1.282
MIB = 2**20

Item = TypeVar("Item")


@dataclass(frozen=True)
class Figures:
    """One plan over `prompts` prompts; kl and agreement are means over the prompts.

    kl_bound, agreement_bound: one-sided 90 % bounds of those means, on the bad side, from the spread over prompts;
    infinite and 0 for one prompt. rows_share, units_share: rows computed and units read, of full attention's.
    total_mib: the most memory that any prompt took, of units and all that the plan holds beside them. ttft_s, tpot_s,
    pace: of single runs, medians and the fastest (`Measurement`); they rank, and say no more.
    """

    plan: str
    prompts: int
    kl: float
    kl_bound: float
    agreement: float
    agreement_bound: float
    rows_share: float
    units_share: float
    total_mib: float
    ttft_s: float
    tpot_s: float
    pace: float

    @property
    def likely(self) -> dict[str, float]:
        """What limits are about, counted, by name: means, and the most memory."""
        return {"kl": self.kl, "agreement": self.agreement, "total_mib": self.total_mib}

    @property
    def careful(self) -> dict[str, float]:
        """The same with the bounds in place of the means."""
        return {"kl": self.kl_bound, "agreement": self.agreement_bound, "total_mib": self.total_mib}

    @property
    def rough_times(self) -> dict[str, float]:
        return {"ttft_s": self.ttft_s, "tpot_s": self.tpot_s}

    @property
    def counted(self) -> float:
        """What it computes, reads and holds, as one number to rank by."""
        return self.rows_share * self.units_share * self.total_mib


def figures_of(group: Sequence[Measurement]) -> Figures:
    """The figures of one plan; `group`: its measurements, at least one."""
    kls, agreements = [each.kl for each in group], [each.agreement for each in group]
    units_full = sum(each.units_full for each in group)
    return Figures(
        plan=group[0].plan,
        prompts=len(group),
        kl=statistics.fmean(kls),
        kl_bound=statistics.fmean(kls) + _margin(kls),
        agreement=statistics.fmean(agreements),
        agreement_bound=max(0.0, statistics.fmean(agreements) - _margin(agreements)),
        rows_share=sum(each.rows_computed for each in group) / sum(each.rows_full for each in group),
        units_share=sum(each.units_read for each in group) / units_full if units_full else 1.0,
        total_mib=max(each.total_bytes for each in group) / MIB,
        ttft_s=statistics.median(each.prefill_s for each in group),
        tpot_s=statistics.median(each.step_s for each in group),
        pace=min(each.pace for each in group),
    )


def frontier(rows: Sequence[Figures]) -> list[Figures]:
    """Those that no other beats or equals in KL, rows, units and memory while beating it in one, by KL."""
    return sorted((row for row in rows if not any(_beats(other, row) for other in rows)), key=lambda row: row.kl)


def take_turns(items: Sequence[Item], keys: Sequence[Callable[[Item], Any]], count: int) -> list[Item]:
    """`count` items, each key in turn adding the least of those that are left."""
    left, taken = list(items), []
    for turn in range(min(count, len(items))):
        taken.append(min(left, key=keys[turn % len(keys)]))
        left.remove(taken[-1])
    return taken


def _margin(values: Sequence[float]) -> float:
    """How far the mean may be off; one value says nothing about that."""
    if len(values) < 2:
        return math.inf
    freedom = len(values) - 1
    quantile = T90[freedom - 1] if freedom <= len(T90) else Z90 + (Z90**3 + Z90) / (4 * freedom)  # of Student's t
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def _beats(one: Figures, other: Figures) -> bool:
    pairs = list(zip(_axes(one), _axes(other), strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def _axes(row: Figures) -> tuple[float, ...]:
    return row.kl, row.rows_share, row.units_share, row.total_mib
