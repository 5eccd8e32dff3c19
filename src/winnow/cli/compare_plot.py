"""Pictures of results, drawn with matplotlib (the extra `bench`)."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from winnow.cli.draw import MARKERS, new_figure, save
from winnow.evaluation.accuracy import Accuracy
from winnow.evaluation.compare import Row
from winnow.evaluation.peers.summary import PeerRow

MIB = 2**20
PANELS: dict[str, Callable[[Row], float | None]] = {
    "score, %": lambda row: None if row.score is None else 100 * row.score,
    "TTFT, s": lambda row: row.ttft_s.median,
    "TPOT, ms": lambda row: None if row.tpot_s is None else 1000 * row.tpot_s.median,
    "memory, MiB": lambda row: row.total_bytes / MIB,
}

PEER_PANELS: dict[str, Callable[[PeerRow], float | None]] = {
    "score, %": lambda row: None if row.score is None else 100 * row.score,
    "TTFT, s": lambda row: row.ttft_s.median,
    "TPOT, ms": lambda row: None if row.tpot_s is None else 1000 * row.tpot_s.median,
    "tokens/s": lambda row: row.tokens_per_s,
    "cache, MiB": lambda row: row.cache_bytes / MIB,
    "memory, MiB": lambda row: None if row.peak_bytes is None else row.peak_bytes / MIB,
}
Drawn = TypeVar("Drawn", Row, PeerRow)


def plot_comparison(path: Path, rows: Sequence[Row]) -> None:
    """A row of panels per length, a bar per plan: score (of tasks), TTFT, TPOT and memory (`total_bytes`)."""
    _bars(path, rows, PANELS, lambda row: row.plan)


def plot_peers(path: Path, rows: Sequence[PeerRow]) -> None:
    """The same for plans and peers, with tokens/s and the memory of each arm's process."""
    _bars(path, rows, PEER_PANELS, lambda row: row.arm)


def _bars(
    path: Path,
    rows: Sequence[Drawn],
    panels: Mapping[str, Callable[[Drawn], float | None]],
    label: Callable[[Drawn], str],
) -> None:
    lengths = list(dict.fromkeys(row.length for row in rows))
    names = [name for name, value in panels.items() if any(value(row) is not None for row in rows)]
    height = 1.2 + 0.45 * len({label(row) for row in rows})
    figure = new_figure(3.5 * len(names), height * len(lengths))
    axes = figure.subplots(len(lengths), len(names), squeeze=False, sharey=True)
    for line, length in zip(axes, lengths, strict=True):
        group = [row for row in rows if row.length == length]
        for axis, name in zip(line, names, strict=True):
            values = [panels[name](row) or 0.0 for row in group]
            axis.bar_label(axis.barh([label(row) for row in group], values), fmt="%.3g", padding=3)
            axis.set_xlim(0, 1.3 * max(values) or 1)
            axis.set_xlabel(name)
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
