"""Pictures: what an arm loses, in points and in KL, over each of its costs; the frontier is what nothing beats.

Arms of which the model has an adapter have a frontier of their own: what training moves is between the two.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from benchmarks.fidelity_by_domain import Interval
from benchmarks.fidelity_plot import COLOURS, verb_of
from benchmarks.quality.arms import FULL
from benchmarks.quality.figures import ALL, ScoreRow, WindowRow
from winnow.cli.draw import GREY, new_figure, plain, reference, save, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = TypeVar("Row", ScoreRow, WindowRow)
PANELS = {"rows": "rows computed", "bytes": "most bytes held", "units": "units read"}  # % of full attention's
NAMED = 36  # characters of an arm's name
CHEAPER = 99.5  # %: an arm that takes more of a cost says nothing about it
LINEAR = 0.01  # nats: a KL below is drawn to a linear scale
TICKS = (0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
APART, WITHIN = 0.045, 0.012  # of two names, of the height of a panel; of two points that are seen as one
MARKERS = {False: ("o", "solid", "the model as it is"), True: ("D", "dashed", "with an adapter")}  # by `Point.adapted`


@dataclass(frozen=True)
class Point:
    """An arm: its cost, % of full attention's, and what it loses. adapted: whether its model has an adapter."""

    arm: str
    verb: str
    cost: float
    lost: Interval
    adapted: bool = False


@dataclass(frozen=True)
class Line:
    """A row of panels. points: by cost; higher: whether more is better."""

    label: str
    higher: bool
    points: dict[str, list[Point]]


def plot_quality(path: Path, scores: Sequence[ScoreRow], windows: Sequence[WindowRow], title: str) -> None:
    """Of the longest length: a column of panels per cost, the points from full attention above, the KL below."""
    length = max(row.length for row in (*scores, *windows))
    answered = _overall([row for row in scores if row.length == length], lambda row: row.task)
    followed = _overall([row for row in windows if row.length == length], lambda row: row.domain)
    lines = []
    if answered:
        points = {cost: _points(answered, cost, lambda row: _percent(row.difference)) for cost in PANELS}
        lines.append(Line("score, points from full attention (95 %)", True, points))
    if followed:
        points = {cost: _points(followed, cost, lambda row: row.kl) for cost in PANELS}
        lines.append(Line("KL from full attention, nats (95 %)", False, points))
    figure = new_figure(15, 0.9 + 4.6 * len(lines))
    axes = figure.subplots(len(lines), len(PANELS), squeeze=False, sharex="col", sharey="row")
    for panels, line in zip(axes, lines, strict=True):
        for axis, cost in zip(panels, PANELS, strict=True):
            _panel(axis, line.points[cost], higher=line.higher)
        if not line.higher:
            most = max([LINEAR, *(point.lost.high for points in line.points.values() for point in points)])
            panels[0].set_ylim(-LINEAR / 5, 1.2 * most)
        panels[0].set_ylabel(line.label)
    for panels, line in zip(axes, lines, strict=True):  # once all limits are settled
        for axis, cost in zip(panels, PANELS, strict=True):
            best = [each for _, best in _frontiers(line.points[cost], higher=line.higher) for each in best]
            _name(axis, best, [each for each in line.points[cost] if each not in best])
    for axis, what in zip(axes[-1], PANELS.values(), strict=True):
        axis.set_xlabel(f"{what}, % of full attention's")
    shown = [point for line in lines for points in line.points.values() for point in points]
    _legend(figure, {point.verb for point in shown}, {point.adapted for point in shown})
    figure.suptitle(f"{title}, {length:,} tokens", x=0.01, ha="left", fontweight="bold", fontsize=12)
    save(figure, path)


def frontier(points: Sequence[Point], *, higher: bool) -> list[Point]:
    """The points that no cheaper one equals, the cheapest first. higher: whether more is better."""
    sign = 1 if higher else -1
    found: list[Point] = []
    for point in sorted(points, key=lambda each: (each.cost, -sign * each.lost.mean)):
        if not found or sign * point.lost.mean > sign * found[-1].lost.mean:
            found.append(point)
    return found


def _frontiers(points: Sequence[Point], *, higher: bool) -> list[tuple[list[Point], list[Point]]]:
    """The points of models as they are and of those with an adapter, each with their frontier."""
    groups = [[point for point in points if point.adapted is adapted] for adapted in MARKERS]
    return [(group, frontier(group, higher=higher)) for group in groups if group]


def _overall(rows: Sequence[Row], what: Callable[[Row], str]) -> list[Row]:
    """The rows over all tasks or domains, or of the only one."""
    kinds = {what(row) for row in rows}
    wanted = ALL if ALL in kinds else next(iter(kinds), ALL)
    return [row for row in rows if what(row) == wanted]


def _points(rows: Sequence[Row], cost: str, lost: Callable[[Row], Interval]) -> list[Point]:
    """Of the arms that save some of a cost."""
    shares = [(row, share) for row in rows if row.arm != FULL and (share := row.costs[cost]) is not None]
    return [
        Point(row.arm, verb_of(row.plan), 100 * share, lost(row), row.adapter is not None)
        for row, share in shares
        if 100 * share <= CHEAPER
    ]


def _percent(interval: Interval) -> Interval:
    return Interval(100 * interval.mean, 100 * interval.low, 100 * interval.high)


def _panel(axis: "Axes", points: Sequence[Point], *, higher: bool) -> None:
    for group, best in _frontiers(points, higher=higher):
        marker, line, _ = MARKERS[best[0].adapted]
        for point in group:
            on = point in best
            reach = [[max(0.0, point.lost.mean - point.lost.low)], [max(0.0, point.lost.high - point.lost.mean)]]
            axis.errorbar(
                point.cost, point.lost.mean, reach, color=COLOURS[point.verb], marker=marker, ms=8 if on else 4,
                mec="white", mew=0 if on else 0.5, elinewidth=1.2 if on else 0.5, alpha=1 if on else 0.6,
                zorder=3 if on else 5,  # one that lies on the frontier's dots is seen as well
            )  # fmt: skip
        reached = [each.cost for each in best], [each.lost.mean for each in best]
        axis.step(*reached, where="post", color=GREY, lw=1, linestyle=line, zorder=1)
    axis.set_xscale("log")
    axis.set_xlim(right=110)
    axis.set_xticks([2, 5, 10, 20, 50, 100], ["2", "5", "10", "20", "50", "100"])
    axis.set_xticks([], minor=True)
    axis.set_xlim(left=min([5.0, *(0.8 * point.cost for point in points)]))
    if higher:
        reference(axis, 0)
    else:
        axis.set_yscale("symlog", linthresh=LINEAR, linscale=0.4)  # a plan that loses nothing has its place too
        axis.set_yticks(TICKS, [f"{each:g}" for each in TICKS])
        axis.set_yticks([], minor=True)
    plain(axis)


def _name(axis: "Axes", best: Sequence[Point], others: Sequence[Point]) -> None:
    """The names of the best, and of others that lie on one of these; pushed apart where they would meet."""
    to_panel = axis.transScale + axis.transLimits  # data -> share of the panel
    where = {each: to_panel.transform((each.cost, each.lost.mean)) for each in (*best, *others)}
    hidden = [each for each in others if any(abs(where[each] - where[one]).max() < WITHIN for one in best)]
    points = [*best, *hidden]
    places = [where[each] for each in points]
    for index, height in spread([float(place[1]) for place in places], APART).items():
        point, left = points[index], float(places[index][0]) < 0.5
        name = _short(point.arm)
        written = axis.annotate(
            name, (point.cost, height), (7 if left else -7, 6), xycoords=("data", "axes fraction"),
            textcoords="offset points", color=COLOURS[point.verb], fontsize=7, va="center",
            ha="left" if left else "right", zorder=4, annotation_clip=False,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.7},
        )  # fmt: skip
        written.set_in_layout(False)  # a long name may reach into the next panel, which keeps its place


def _short(arm: str) -> str:
    """A plan of several policies by their names, where all of it is too long."""
    if len(arm) <= NAMED:
        return arm
    names = [policy.split("(")[0] for policy in arm.split(" + ")]
    return " + ".join(names) if len(names) > 1 else f"{arm[: NAMED - 2]} …"


def _legend(figure: "Figure", verbs: set[str], adapted: set[bool]) -> None:
    """Colours, and markers where there are two."""
    from matplotlib.lines import Line2D

    shown = [verb for verb in COLOURS if verb in verbs]
    handles = [Line2D([], [], color=COLOURS[verb], marker="o", lw=0, label=verb) for verb in shown]
    kinds = [MARKERS[each] for each in MARKERS if each in adapted] if len(adapted) > 1 else []
    handles += [
        Line2D([], [], color=GREY, marker=marker, linestyle=line, lw=1, label=label) for marker, line, label in kinds
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=max(1, len(handles)), frameon=False, fontsize=8)
