"""Picture of how long prompts take under plans, and how far from full attention they then are."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from benchmarks.fidelity_by_domain import Interval
from benchmarks.fidelity_plot import COLOURS, verb_of
from benchmarks.quality.plot import Point, frontier
from benchmarks.sparse import FULL, SparseRow
from winnow.cli.draw import GREY, new_figure, plain, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMED = 44  # characters of a plan on a line


def plot_sparse(path: Path, rows: Sequence[SparseRow], title: str) -> None:
    """A panel per length: seconds of the prompt, % of full attention's in the same turn, and the KL after it."""
    from matplotlib.lines import Line2D

    compared = [row for row in rows if row.kl is not None and row.plan != FULL]
    lengths = sorted({row.length for row in compared})
    plans = list(dict.fromkeys(row.plan for row in compared))
    figure = new_figure(5.5 + 5 * len(lengths), max(4.6, 0.9 + 0.34 * len(plans)))
    for axis, length in zip(figure.subplots(1, len(lengths), squeeze=False)[0], lengths, strict=True):
        _panel(axis, [row for row in compared if row.length == length], plans)
        axis.set_title(f"{length:,} tokens", loc="left", fontsize=9)
    handles = [
        Line2D([], [], color=COLOURS[verb_of(plan)], marker="o", ms=4, lw=0, label=f"{number}  {fill(plan, NAMED)}")
        for number, plan in enumerate(plans, 1)
    ]
    figure.legend(handles=handles, loc="outside right center", frameon=False, fontsize=8, labelspacing=0.9)
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=12)
    save(figure, path)


def _panel(axis: "Axes", rows: Sequence[SparseRow], plans: Sequence[str]) -> None:
    points = [_point(row) for row in rows]
    best = frontier(points, higher=False)
    for point, row in zip(points, rows, strict=True):
        reach = [[point.cost - 100 / row.speedup_high], [100 / row.speedup_low - point.cost]]
        colour = COLOURS[point.verb]
        axis.errorbar(point.cost, point.lost.mean, xerr=reach, color=colour, marker="o", ms=13, elinewidth=1, zorder=3)
        number = str(1 + plans.index(point.arm))
        axis.annotate(
            number, (point.cost, point.lost.mean), ha="center", va="center", color="white", fontsize=8, zorder=4
        )
    axis.step([each.cost for each in best], [each.lost.mean for each in best], where="post", color=GREY, lw=1, zorder=1)
    axis.axvline(100, color=GREY, lw=1, ls="--", zorder=0)
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set_xlim(0, max([105.0, *(100 / row.speedup_low + 2 for row in rows)]))
    axis.set_xlabel("seconds of the prompt, % of full attention's")
    axis.set_ylabel("KL from full attention after it, nats")
    plain(axis)


def _point(row: SparseRow) -> Point:
    assert row.kl is not None
    return Point(row.plan, verb_of(row.plan), 100 / row.speedup, Interval(row.kl, row.kl, row.kl))
