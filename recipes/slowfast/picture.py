"""Score over the share of units that is read: a panel per listing task and length, a line per selector."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from recipes.reporting import Record

from .arms import BASE, LISTINGS, MAIN, SELECTORS, SHARES, selector_arm
from .figures import score, share

COLOURS = dict(zip(MAIN, ("#d1495b", "#00798c", "#edae49", "#6a4c93"), strict=True))
MARKERS = {"quest": "s", "tidal": "^", "sink_recent": "v", "quest, 2 dense layers": "D", "tidal, layers 2 and 4": "P"}


def plot(records: list[Record], path: Path) -> None:
    """Full attention is the dotted line; the relatives are single points."""
    lengths = sorted({record["length"] for record in records})
    figure = Figure(figsize=(3.4 * len(LISTINGS), 3.3 * len(lengths) + 0.9), layout="constrained")
    grid = figure.subplots(len(lengths), len(LISTINGS), sharex=True, sharey=True, squeeze=False)
    for row, length in zip(grid, lengths, strict=True):
        for axis, task in zip(row, LISTINGS, strict=True):
            _panel(axis, {r["arm"]: r for r in records if r["task"] == task and r["length"] == length})
            axis.set(title=f"{task}, {length:,} tokens", xscale="log", ylim=(-3, 103))
            axis.set_xticks([5, 10, 20, 50], ["5", "10", "20", "50"])
            axis.minorticks_off()
            axis.grid(alpha=0.25)
            axis.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel("score, %")
    for axis in grid[-1]:
        axis.set_xlabel("units read, % of full attention")
    labelled = {
        label: line for axis in grid.flat for line, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    if labelled:
        figure.legend(
            labelled.values(), labelled.keys(), loc="outside lower center", ncols=6, frameon=False, fontsize=8
        )
    figure.savefig(path, dpi=130)


def _panel(axis: Axes, arms: dict[str, Record]) -> None:
    """arms: the measurements of one task and length by the name of the arm."""
    if "full" in arms:
        axis.axhline(score(arms["full"]), color="black", linewidth=1, linestyle=":", label="full attention")
    for place, name in enumerate(SELECTORS):
        budgets = [selector_arm(name, each, BASE["bootstrap"]) for each in SHARES]
        points = sorted(_point(arms[each]) for each in budgets if each in arms)
        if points:
            strong = name in MAIN
            axis.plot(
                *zip(*points, strict=True),
                color=COLOURS.get(name, f"C{place}"),
                marker="o",
                markersize=5 if strong else 3,
                linewidth=2.2 if strong else 1,
                alpha=1 if strong else 0.6,
                label=name,
                zorder=3 if strong else 2,
            )
    for name, marker in MARKERS.items():
        if name in arms:
            axis.plot(*_point(arms[name]), color="black", linestyle="", marker=marker, markersize=6, label=name)


def _point(record: Record) -> tuple[float, float]:
    return share([record], "units_read", ("units_full",)), score(record)
