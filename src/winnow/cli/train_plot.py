"""A training as a picture, drawn with matplotlib (the extra `bench`)."""

import json
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnow.cli.draw import GREY, new_figure, plain, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNSEEN = ("step", "tokens", "s", "learning_rate", "grad_norm", "held_out")  # of a line of the log: no figures of a run
SMOOTHED = 10  # lines of the log that a mean is taken over
COLUMNS = 3  # panels side by side


def plot_training(path: Path, log: Path, title: str) -> None:
    """The figures in a log, over steps. Raises InputError where the file cannot be written."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    save(training_figure(lines, title), path)


def training_figure(lines: list[dict[str, Any]], title: str) -> "Figure":
    """A panel per figure: of what is learnt from, line by line and as a running mean, and of what is held out."""
    learnt = [line for line in lines if "held_out" not in line]
    held_out = [{"step": line["step"], **line["held_out"]} for line in lines if "held_out" in line]
    names = [name for name in dict.fromkeys(chain.from_iterable((*learnt, *held_out))) if name not in UNSEEN]
    columns = min(COLUMNS, max(1, len(names)))
    rows = -(-max(1, len(names)) // columns)
    figure = new_figure(4.2 * columns, 3.2 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for name, axis in zip(names, panels, strict=False):
        steps, values = series(learnt, name)
        axis.plot(steps, values, color=GREY, lw=0.8, alpha=0.5, label="a line of the log")
        axis.plot(steps, running(values, SMOOTHED), color="C0", lw=1.8, label=f"mean of the last {SMOOTHED}")
        axis.plot(*series(held_out, name), color="C3", lw=1.2, marker="o", ms=4, label="held out")
        axis.set(title=name, xlabel="step")
        axis.title.set_size(10)
        plain(axis)
    for axis in panels:  # the iterator goes on: those that nothing was drawn in
        axis.set_visible(False)
    figure.suptitle(title, fontsize=11)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return figure


def series(lines: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """The steps of the lines that have a figure, and the figure there."""
    found = [(line["step"], line[name]) for line in lines if name in line]
    return [step for step, _ in found], [value for _, value in found]


def running(values: list[float], count: int) -> list[float]:
    """The mean of each value and those before it, `count` at most."""
    last = [values[max(0, end - count) : end] for end in range(1, len(values) + 1)]
    return [sum(each) / len(each) for each in last]
