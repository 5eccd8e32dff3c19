"""Pictures of what schedules save and cost; every line is labelled where it ends."""

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.depth import Cell
from benchmarks.draw import claim_title, label_ends, shades
from benchmarks.sparsity import Profile
from benchmarks.sweep import ALL, FULL, SweepRow
from benchmarks.tables import layers_of
from benchmarks.usage import Stage
from winnow.cli.draw import GREY, MARKERS, new_figure, reference, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AS_GOOD = 0.99  # of full attention's score: the loss that the LazyLLM paper calls negligible


@dataclass(frozen=True)
class Saving:
    """One way to say how much cheaper a plan is: the more, the cheaper. words: for `value` in a sentence; full: full
    attention's value.
    """

    label: str
    words: str
    full: float
    value: Callable[[SweepRow], float]


SAVINGS = {  # by what is typed after --against
    "ttft": Saving(
        "speed-up of the time to first token", "{:.2f}x faster to the first token", 1, lambda row: row.ttft_speedup
    ),
    "flops": Saving(
        "FLOPs of prefill saved, %", "{:.0f} % of prefill's FLOPs saved", 0, lambda row: 100 * (1 - row.flops_share)
    ),
    "rows": Saving(
        "rows of prefill saved, %", "{:.0f} % of prefill's rows saved", 0, lambda row: 100 * (1 - row.rows_share)
    ),
    "generation": Saving(
        "speed-up of the whole generation", "{:.2f}x faster in all", 1, lambda row: row.generation_speedup
    ),
}


def plot_sweep(path: Path, rows: Sequence[SweepRow], against: str) -> None:
    """Score against what is saved: a row of panels per length, a panel per task, a line per kind of plan."""
    lengths = list(dict.fromkeys(row.length for row in rows))
    tasks = sorted(dict.fromkeys(row.task for row in rows), key=lambda task: task != ALL)
    names = list(dict.fromkeys(row.name for row in rows if row.name != FULL))
    figure = new_figure(max(7.5, 1 + 4.2 * len(tasks)), 0.5 + 3.6 * len(lengths))
    axes = figure.subplots(len(lengths), len(tasks), squeeze=False, sharex=True, sharey=True)
    for line, length in zip(axes, lengths, strict=True):
        for axis, task in zip(line, tasks, strict=True):
            _sweep_panel(axis, [row for row in rows if (row.length, row.task) == (length, task)], names, against)
            axis.set_title(f"{task}, {length:,} tokens", loc="left", fontsize=10)
        line[0].set_ylabel("score, % (95 % interval)")
    for axis in axes[-1]:
        axis.set_xlabel(SAVINGS[against].label)
    overall = [row for row in rows if row.task == tasks[0]]
    figure.suptitle(sweep_claim(overall, against), x=0.01, ha="left", fontweight="bold", fontsize=12)
    save(figure, path)


def sweep_claim(rows: Sequence[SweepRow], against: str) -> str:
    """The cheapest plan whose score is as good as full attention's, in one line."""
    words, full, value = SAVINGS[against].words, SAVINGS[against].full, SAVINGS[against].value
    good = [row for row in rows if value(row) > full and (row.relative_score or 0) >= AS_GOOD]
    if not good:
        return f"No plan is cheaper and keeps {100 * AS_GOOD:.0f} % of full attention's score"
    best = max(good, key=value)
    return f"{best.name}: {words.format(value(best))} at {100 * (best.relative_score or 0):.0f} % of the score"


def _sweep_panel(axis: "Axes", rows: Sequence[SweepRow], names: Sequence[str], against: str) -> None:
    value = SAVINGS[against].value
    for full in (row for row in rows if row.name == FULL):
        reference(axis, 100 * full.score)
        axis.plot([value(full)], [100 * full.score], color=GREY, marker="o", ms=5)
    ends = []
    for index, (name, marker) in enumerate(zip(names, itertools.cycle(MARKERS), strict=False)):
        points = sorted((row for row in rows if row.name == name), key=value)
        at, scores = [value(row) for row in points], [100 * row.score for row in points]
        errors = [
            [100 * (row.score - row.low) for row in points],
            [100 * (row.high - row.score) for row in points],
        ]
        axis.errorbar(at, scores, errors, color=f"C{index}", marker=marker, ms=5, lw=1.5, elinewidth=0.6, capsize=2)
        ends.append((at[-1], scores[-1], name, f"C{index}"))
    axis.set_ylim(-3, 105)
    label_ends(axis, ends)


def plot_depth(path: Path, cells: Sequence[Cell]) -> None:
    """Score against the one pruning layer, a line per keep ratio."""
    full, *pruned = cells
    figure = new_figure(7, 4.2)
    axis = figure.subplots()
    reference(axis, 100 * full.score)
    keeps, ends = sorted({cell.keep for cell in pruned if cell.keep is not None}, reverse=True), []
    for keep, color in zip(keeps, shades(len(keeps)), strict=True):
        line = [cell for cell in pruned if cell.keep == keep]
        layers, scores = [cell.layer or 0 for cell in line], [100 * cell.score for cell in line]
        axis.plot(layers, scores, color=color, marker="o", ms=4)
        ends.append((layers[-1], scores[-1], f"{100 * keep:g} % kept", color))
    axis.set(
        xlabel="the one pruning layer", ylabel="score, %", ylim=(-3, 105), xticks=sorted({c.layer for c in pruned})
    )
    label_ends(axis, ends)
    claim_title(axis, depth_claim(cells))
    save(figure, path)


def depth_claim(cells: Sequence[Cell]) -> str:
    """From which layer on how little of the prompt is enough."""
    full, *pruned = cells
    for keep in sorted({cell.keep for cell in pruned if cell.keep is not None}):
        line = sorted((cell for cell in pruned if cell.keep == keep), key=lambda cell: cell.layer or 0)
        good = list(itertools.takewhile(lambda cell: cell.score >= AS_GOOD * full.score, reversed(line)))
        if good:
            return f"From layer {good[-1].layer} on, {100 * keep:g} % of the prompt is enough"
    return f"No share kept holds {100 * AS_GOOD:.0f} % of the score, at no layer"


def plot_usage(path: Path, stages: Sequence[Stage], plan: str) -> None:
    """Share of the prompt computed against the step, a line per stage of layers."""
    figure = new_figure(7, 4.2)
    axis, ends = figure.subplots(), []
    for stage, color in zip(stages, shades(len(stages)), strict=True):
        shares = [100 * share for share in stage.share]
        axis.plot(range(len(shares)), shares, color=color, lw=2)
        ends.append((len(shares) - 1, shares[-1], layers_of(stage), color))
    axis.set(xlabel="decode step (0: prefill)", ylabel="prompt tokens computed so far, %", ylim=(-3, 105))
    label_ends(axis, ends)
    top = stages[-1].share
    claim = f"The last layers compute {100 * top[0]:.0f} % of the prompt in prefill, {100 * top[-1]:.0f} % in the end"
    claim_title(axis, claim, plan)
    save(figure, path)


def plot_sparsity(path: Path, profiles: Sequence[Profile], shares: Sequence[float]) -> None:
    """Attention from the most attended token down, a line per layer and one for their mean, on logarithmic scales."""
    *layers, mean = profiles
    ends: list[tuple[float, float, str, Any]] = []
    figure = new_figure(7, 4.2)
    axis = figure.subplots()
    percent = [100 * share for share in shares]
    for index, (profile, color) in enumerate(zip(layers, shades(len(layers)), strict=True)):
        axis.plot(percent, profile.curve, color=color, lw=1.2)
        if len(layers) <= 12 or index % (len(layers) // 8) == 0:
            ends.append((percent[-1], profile.curve[-1], f"layer {profile.layer}", color))
    axis.plot(percent, mean.curve, color="black", lw=2, ls="--")
    ends.append((percent[-1], mean.curve[-1], "mean", "black"))
    axis.set(xscale="log", yscale="log", xlabel="tokens, the most attended first, % of the prompt", ylabel="attention")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_ylim(bottom=max(1e-9, min(profile.curve[-4] for profile in profiles)))  # the very last fall off a cliff
    label_ends(axis, ends)
    mass = list(mean.holds)[len(mean.holds) // 2]
    held = statistics.median(profile.holds[mass] for profile in layers)
    claim = f"{100 * held:.1f} % of the prompt gets {100 * float(mass):g} % of the attention (the median layer)"
    claim_title(axis, claim)
    save(figure, path)
