"""Pictures of results, drawn with matplotlib (the extra `bench`)."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from winnow.cli.compare_view import COSTS, PEER_COSTS, SCORE
from winnow.cli.draw import MARKERS, new_figure, save
from winnow.cli.tables import Column
from winnow.evaluation.accuracy import Accuracy
from winnow.evaluation.compare import Row
from winnow.evaluation.peers.summary import PeerRow

Drawn = TypeVar("Drawn", bound=Row | PeerRow)


def plot_comparison(path: Path, rows: Sequence[Row]) -> None:
    """A row of panels per length, a bar per plan: score (of tasks), and what is compared with full attention's."""
    _bars(path, rows, COSTS, lambda row: row.plan)


def plot_peers(path: Path, rows: Sequence[PeerRow]) -> None:
    """The same for plans and peers."""
    _bars(path, rows, PEER_COSTS, lambda row: row.arm)


def _bars(path: Path, rows: Sequence[Drawn], costs: Sequence[Column[Drawn]], label: Callable[[Drawn], str]) -> None:
    lengths = list(dict.fromkeys(row.length for row in rows))
    drawn: list[Column[Drawn]] = [SCORE, *(column for column in costs if column.ratio)]
    panels = [column for column in drawn if any(column.value(row) is not None for row in rows)]
    height = 1.2 + 0.45 * len({label(row) for row in rows})
    figure = new_figure(3.5 * len(panels), height * len(lengths))
    axes = figure.subplots(len(lengths), len(panels), squeeze=False, sharey=True)
    for line, length in zip(axes, lengths, strict=True):
        group = [row for row in rows if row.length == length]
        for axis, column in zip(line, panels, strict=True):
            values = [column.value(row) or 0.0 for row in group]
            axis.bar_label(axis.barh([label(row) for row in group], values), fmt="%.3g", padding=3)
            axis.set_xlim(0, 1.3 * max(values) or 1)
            axis.set_xlabel(column.label)
        line[0].set_title(f"{length:,} prompt tokens", loc="left")
    axes[0][0].invert_yaxis()  # shared by all panels
    save(figure, path)


def plot_depths(path: Path, accuracies: Sequence[Accuracy]) -> None:
    """Needles found by depth: a panel per task, a line per plan and length."""
    tasks = list(dict.fromkeys(each.task for each in accuracies))
    figure = new_figure(1 + 4 * len(tasks), 4)
    axes = figure.subplots(1, len(tasks), squeeze=False, sharey=True)[0]
    for axis, task in zip(axes, tasks, strict=True):
        for marker, each in zip(itertools.cycle(MARKERS), (a for a in accuracies if a.task == task), strict=False):
            depths = [point.depth for point in each.by_depth]
            shares = [100 * point.found for point in each.by_depth]
            axis.plot(depths, shares, marker=marker, alpha=0.7, label=f"{each.plan}, {each.length:,} tokens")
        axis.set(title=task, xlabel="depth of the needle (0 start, 1 end)", ylim=(-5, 105))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("needles found, %")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center")
    save(figure, path)
