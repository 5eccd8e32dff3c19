"""Score over the share of units that is read: a panel per listing task and length, a line per selector."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from recipes.reporting import Record

from .arms import LISTINGS, MAIN, SCHEDULES, SHARES, selector_arm
from .figures import score, share

COLOURS = dict(zip(MAIN, ("#d1495b", "#7a1020", "#00798c", "#edae49", "#6a4c93", "#8d99ae"), strict=True))
FILLS = dict(zip(SCHEDULES, ("full", "none"), strict=True))
MARKERS = {"quest": "s", "tidal from layer 0": "^", "sink_recent": "v"}
SHOWN = [task for task in LISTINGS if task.endswith("forced")]  # the others say little about needle


def plot(records: list[Record], path: Path) -> None:
    """Full attention is the dotted line; the budgets of a selector are joined, the relatives are single points."""
    lengths = sorted({record["length"] for record in records})
    tasks = [task for task in SHOWN if any(record["task"] == task for record in records)] or list(LISTINGS[:1])
    figure = Figure(figsize=(5 * len(tasks), 3.4 * len(lengths) + 1.1), layout="constrained")
    grid = figure.subplots(len(lengths), len(tasks), sharex=True, sharey=True, squeeze=False)
    for row, length in zip(grid, lengths, strict=True):
        for axis, task in zip(row, tasks, strict=True):
            _panel(axis, {r["arm"]: r for r in records if r["task"] == task and r["length"] == length})
            axis.set_title(f"{task}, {length:,} tokens", fontsize=10)
            axis.set(xlim=(0, 60), ylim=(-3, 103))
            axis.grid(alpha=0.25)
            axis.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel("score, %")
    for axis in grid[-1]:
        axis.set_xlabel("units read, % of full attention")
    handles = [axis.get_legend_handles_labels() for axis in grid.flat]
    labelled = {label: line for lines, labels in handles for line, label in zip(lines, labels, strict=True)}
    below = {"loc": "outside lower center", "ncols": 4, "frameon": False, "fontsize": 8}
    figure.legend(list(labelled.values()), list(labelled), **below)
    figure.savefig(path, dpi=130)


def _panel(axis: Axes, arms: dict[str, Record]) -> None:
    """arms: the measurements of one task and length by the name of the arm."""
    if "full" in arms:
        axis.axhline(score(arms["full"]), color="black", linewidth=1, linestyle=":", label="full attention")
    for name in MAIN:
        for schedule, fill in FILLS.items():
            budgets = [selector_arm(name, each, schedule) for each in SHARES]
            label, style = f"{name}, slow {schedule}", {"color": COLOURS[name], "marker": "o", "fillstyle": fill}
            if points := sorted(_point(arms[each]) for each in budgets if each in arms):
                x, y = zip(*points, strict=True)
                axis.plot(x, y, linewidth=1.5, markersize=6, label=label, **style)
    for name, marker in MARKERS.items():
        for schedule, fill in FILLS.items():
            if (arm := f"{name}, {schedule}") in arms:
                style = {"marker": marker, "fillstyle": fill, "label": f"{name}, as many units as {schedule}"}
                axis.plot(*_point(arms[arm]), color="black", linestyle="", markersize=6, **style)


def _point(record: Record) -> tuple[float, float]:
    return share([record], "units_read", ("units_full",)), score(record)
