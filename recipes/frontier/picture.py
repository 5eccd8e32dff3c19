"""Score over each counted cost: a row of panels per length, a colour per verb, the frontier of all arms as a line."""

from __future__ import annotations

import math
import re
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from recipes.reporting import Record
from recipes.slowfast.figures import score

from winnow.plan import Plan

from .figures import costs

COLOURS = {
    "prompt": "#6b8f3c",
    "compute": "#00798c",
    "keep": "#d1495b",
    "prefill": "#8d6b4f",
    "read": "#c98a00",
    "store": "#6a4c93",
    "composed": "black",
}
COSTS = {"rows": "rows computed", "bytes": "memory", "units": "units read"}
CUT = 99.0  # percent of full attention's: an arm above it does not cut this cost, and is left out of its panel
Point = tuple[float, float, Record]


def plot(records: list[Record], path: Path) -> None:
    """Costs are in percent of full attention's, on a logarithmic axis; the numbers are those of the tables' rows."""
    measured = [record for record in records if record["rows"]]
    lengths = list(dict.fromkeys(record["length"] for record in measured))
    height = max(5.4 * len(lengths), 0.16 * len({record["number"] for record in measured}) + 1)
    figure = Figure(figsize=(18, height), layout="constrained")
    panels, side = figure.subfigures(1, 2, width_ratios=(5, 1))
    grid = panels.subplots(len(lengths), len(COSTS), sharey=True, squeeze=False)
    _key(side.subplots(), measured)
    for line, length in zip(grid, lengths, strict=True):
        here = [record for record in measured if record["length"] == length]
        full = next(record for record in here if record["arm"] == "full")
        for axis, (cost, title) in zip(line, COSTS.items(), strict=True):
            points = [(costs(record, full)[cost], score(record), record) for record in here]
            _panel(axis, [point for point in points if point[2] is full or point[0] < CUT])
            axis.set_title(f"{title}, {length:,} tokens", loc="left", fontsize=10)
            axis.axhline(score(full), color="0.5", linewidth=1, linestyle=":")
        line[0].set_ylabel("score, %")
    for axis in grid[-1]:
        axis.set_xlabel("% of full attention's")
    handles = {label: line for axis in grid.flat for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    panels.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=7, frameon=False, fontsize=9)
    figure.savefig(path, dpi=120)


def pareto(points: list[Point]) -> list[Point]:
    """Those that no other one beats in cost and score together, the cheapest first."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point[0], -point[1])):
        if not best or point[1] > best[-1][1]:
            best.append(point)
    return best


def _panel(axis: Axes, points: list[Point]) -> None:
    for verb, colour in COLOURS.items():
        if mine := [point for point in points if point[2]["verb"] == verb]:
            x, y = [point[0] for point in mine], [point[1] for point in mine]
            axis.scatter(x, y, color=colour, s=46 if verb == "composed" else 26, label=verb, zorder=3)
    [full] = [point for point in points if point[2]["arm"] == "full"]
    axis.scatter(full[0], full[1], marker="*", color="0.4", s=90, label="full attention", zorder=3)
    frontier = pareto(points)
    style = {"drawstyle": "steps-post", "color": "0.7", "linewidth": 1.2, "label": "the frontier"}
    axis.plot([point[0] for point in frontier], [point[1] for point in frontier], **style)
    axis.set(xscale="log", xlim=(1.5, 140), ylim=(-4, 108))
    axis.set_xticks([2, 5, 10, 20, 50, 100], ["2", "5", "10", "20", "50", "100"])
    axis.minorticks_off()
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    _numbers(axis, [point for point in points if point[2] is not full[2]])


def _numbers(axis: Axes, points: list[Point]) -> None:
    """The number of each arm above its point, or above the numbers of points close by."""
    taken: list[tuple[float, float]] = []
    for cost, height, record in sorted(points, key=lambda point: point[1]):
        x, y = math.log(cost), height + 2.2
        while any(abs(x - other) < 0.11 and abs(y - above) < 2.6 for other, above in taken):
            y += 2.6
        taken.append((x, y))
        axis.text(cost, y, record["number"], color=COLOURS[record["verb"]], fontsize=7, ha="center", va="center")


def _key(axis: Axes, records: list[Record]) -> None:
    """What the numbers mean, in columns below one another."""
    axis.set_axis_off()
    names = {record["number"]: record for record in records if record["arm"] != "full"}
    for place, (number, record) in enumerate(sorted(names.items())):
        at = (0.0, 1 - (place + 0.5) / len(names))
        axis.text(*at, f"{number:>2}  {short(record)}", fontsize=7.5, color=COLOURS[record["verb"]], va="center")


def short(record: Record) -> str:
    """The names of an arm's policies, its share and its adapter: `speed + locret + slowfast 1/8, needle-speed-2`."""
    policies = Plan.parse(record["plan"]).policies.values()
    share = re.search(r" 1/\d+", record["arm"])
    name = " + ".join(policy.name for policy in policies if not policy.identity) + (share[0] if share else "")
    return f"{name}, {record['adapter']}" if record["adapter"] else name
