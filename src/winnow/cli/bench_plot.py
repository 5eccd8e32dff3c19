"""Pictures of what schedules save and cost; every line is labelled where it ends."""

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnow.bench.depth import Cell
from winnow.bench.memory import MemoryRow
from winnow.bench.sparsity import Profile
from winnow.bench.sweep import ALL, FULL, SweepRow
from winnow.bench.usage import Stage
from winnow.cli.plot import MARKERS
from winnow.cli.terminal import writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY = "0.45"
AS_GOOD = 0.99  # of full attention's score: the loss that the LazyLLM paper calls negligible
APART = 0.055  # least distance of two labels, of the height of a panel


class Against(StrEnum):
    """What a score is drawn against."""

    ttft = "ttft"
    flops = "flops"
    rows = "rows"
    generation = "generation"


@dataclass(frozen=True)
class Saving:
    """One way to say how much cheaper a plan is: the more, the cheaper. words: for `value` in a sentence; full: full
    attention's value.
    """

    label: str
    words: str
    full: float
    value: Callable[[SweepRow], float]


SAVINGS = {
    Against.ttft: Saving(
        "speed-up of the time to first token", "{:.2f}x faster to the first token", 1, lambda row: row.ttft_speedup
    ),
    Against.flops: Saving(
        "FLOPs of prefill saved, %", "{:.0f} % of prefill's FLOPs saved", 0, lambda row: 100 * (1 - row.flops_share)
    ),
    Against.rows: Saving(
        "rows of prefill saved, %", "{:.0f} % of prefill's rows saved", 0, lambda row: 100 * (1 - row.rows_share)
    ),
    Against.generation: Saving(
        "speed-up of the whole generation", "{:.2f}x faster in all", 1, lambda row: row.generation_speedup
    ),
}


def plot_sweep(path: Path, rows: Sequence[SweepRow], against: Against) -> None:
    """Score against what is saved: a row of panels per length, a panel per task, a line per kind of plan."""
    lengths = list(dict.fromkeys(row.length for row in rows))
    tasks = sorted(dict.fromkeys(row.task for row in rows), key=lambda task: task != ALL)
    names = list(dict.fromkeys(row.name for row in rows if row.name != FULL))
    figure = _figure(max(7.5, 1 + 4.2 * len(tasks)), 0.5 + 3.6 * len(lengths))
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
    _save(figure, path)


def sweep_claim(rows: Sequence[SweepRow], against: Against) -> str:
    """The cheapest plan whose score is as good as full attention's, in one line."""
    words, full, value = SAVINGS[against].words, SAVINGS[against].full, SAVINGS[against].value
    good = [row for row in rows if value(row) > full and (row.relative_score or 0) >= AS_GOOD]
    if not good:
        return f"No plan is cheaper and keeps {100 * AS_GOOD:.0f} % of full attention's score"
    best = max(good, key=value)
    return f"{best.name}: {words.format(value(best))} at {100 * (best.relative_score or 0):.0f} % of the score"


def _sweep_panel(axis: "Axes", rows: Sequence[SweepRow], names: Sequence[str], against: Against) -> None:
    value = SAVINGS[against].value
    for full in (row for row in rows if row.name == FULL):
        _reference(axis, 100 * full.score)
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
    _label_ends(axis, ends)


def plot_depth(path: Path, cells: Sequence[Cell]) -> None:
    """Score against the one pruning layer, a line per keep ratio."""
    from matplotlib import colormaps

    full, *pruned = cells
    figure = _figure(7, 4.2)
    axis = figure.subplots()
    _reference(axis, 100 * full.score)
    keeps, ends = sorted({cell.keep for cell in pruned if cell.keep is not None}, reverse=True), []
    for index, keep in enumerate(keeps):
        line = [cell for cell in pruned if cell.keep == keep]
        color = colormaps["viridis"](0.9 * index / max(1, len(keeps) - 1))
        layers, scores = [cell.layer or 0 for cell in line], [100 * cell.score for cell in line]
        axis.plot(layers, scores, color=color, marker="o", ms=4)
        ends.append((layers[-1], scores[-1], f"{100 * keep:g} % kept", color))
    axis.set(
        xlabel="the one pruning layer", ylabel="score, %", ylim=(-3, 105), xticks=sorted({c.layer for c in pruned})
    )
    _label_ends(axis, ends)
    axis.set_title(depth_claim(cells), loc="left", fontweight="bold", fontsize=11)
    _save(figure, path)


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
    from matplotlib import colormaps

    figure = _figure(7, 4.2)
    axis, ends = figure.subplots(), []
    for index, stage in enumerate(stages):
        color = colormaps["viridis"](0.9 * index / max(1, len(stages) - 1))
        shares = [100 * share for share in stage.share]
        axis.plot(range(len(shares)), shares, color=color, lw=2)
        layers = f"{stage.first}" if stage.first == stage.last else f"{stage.first}-{stage.last}"
        ends.append((len(shares) - 1, shares[-1], f"layer{'s' * (stage.first < stage.last)} {layers}", color))
    axis.set(xlabel="decode step (0: prefill)", ylabel="prompt tokens computed so far, %", ylim=(-3, 105))
    _label_ends(axis, ends)
    top = stages[-1].share
    claim = f"The last layers compute {100 * top[0]:.0f} % of the prompt in prefill, {100 * top[-1]:.0f} % in the end"
    axis.set_title(f"{claim}\n", loc="left", fontweight="bold", fontsize=11)
    axis.text(0, 1.02, plan, transform=axis.transAxes, fontsize=9, color=GREY)
    _save(figure, path)


def plot_sparsity(path: Path, profiles: Sequence[Profile], shares: Sequence[float]) -> None:
    """Attention from the most attended token down, a line per layer and one for their mean, on logarithmic scales."""
    from matplotlib import colormaps

    *layers, mean = profiles
    ends: list[tuple[float, float, str, Any]] = []
    figure = _figure(7, 4.2)
    axis = figure.subplots()
    percent = [100 * share for share in shares]
    for index, profile in enumerate(layers):
        color = colormaps["viridis"](0.9 * index / max(1, len(layers) - 1))
        axis.plot(percent, profile.curve, color=color, lw=1.2)
        if len(layers) <= 12 or index % (len(layers) // 8) == 0:
            ends.append((percent[-1], profile.curve[-1], f"layer {profile.layer}", color))
    axis.plot(percent, mean.curve, color="black", lw=2, ls="--")
    ends.append((percent[-1], mean.curve[-1], "mean", "black"))
    axis.set(xscale="log", yscale="log", xlabel="tokens, the most attended first, % of the prompt", ylabel="attention")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_ylim(bottom=max(1e-9, min(profile.curve[-4] for profile in profiles)))  # the very last fall off a cliff
    _label_ends(axis, ends)
    mass = list(mean.holds)[len(mean.holds) // 2]
    held = statistics.median(profile.holds[mass] for profile in layers)
    claim = f"{100 * held:.1f} % of the prompt gets {100 * float(mass):g} % of the attention (the median layer)"
    axis.set_title(claim, loc="left", fontweight="bold", fontsize=11)
    _save(figure, path)


def plot_memory(path: Path, rows: Sequence[MemoryRow]) -> None:
    """Growth of the peak memory and prompt tokens per second against the length, a line per plan."""
    figure = _figure(10, 4)
    panels: dict[str, Callable[[MemoryRow], float]] = {
        "peak memory, x of the shortest": lambda row: row.growth,
        "prompt tokens per second": lambda row: row.tokens_per_s,
    }
    plans = list(dict.fromkeys(row.plan for row in rows))
    for axis, (label, value) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for index, plan in enumerate(plans):
            line = [row for row in rows if row.plan == plan]
            lengths, color = [row.length for row in line], GREY if plan == FULL else f"C{index}"
            axis.plot(
                lengths, [value(row) for row in line], color=color, marker=MARKERS[index % len(MARKERS)], label=plan
            )
        ticks = sorted({row.length for row in rows})
        axis.set_xscale("log")
        axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axis.minorticks_off()
        axis.set(xlabel="prompt tokens", ylabel=label)
        axis.set_ylim(0, 1.1 * max(value(row) for row in rows))
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", frameon=False)
    figure.suptitle(memory_claim(rows), x=0.01, ha="left", fontweight="bold", fontsize=11)
    _save(figure, path)


def memory_claim(rows: Sequence[MemoryRow]) -> str:
    """By how much the memory of the longest prompt exceeds the shortest's, under the plan where that is least."""
    longest = max(row.length for row in rows)
    best = min((row for row in rows if row.length == longest), key=lambda row: row.growth)
    shortest = min(row.length for row in rows if row.plan == best.plan)
    return f"{best.plan}: {longest:,} tokens take {best.growth:.3f}x the memory of {shortest:,}"


def plot_decoding(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """Seconds per token against the tokens cached, a line per arm and batch, on logarithmic scales."""
    from matplotlib.ticker import LogLocator

    figure = _figure(8, 5)
    axis = figure.subplots()
    for index, (plan, batch) in enumerate(dict.fromkeys((each["plan"], each["batch"]) for each in records)):
        line = [each for each in records if (each["plan"], each["batch"]) == (plan, batch)]
        name = plan + (f", {batch} sequences" if batch > 1 else "")
        lengths, seconds = [each["length"] for each in line], [each["tpot_s"] for each in line]
        axis.plot(lengths, seconds, color=f"C{index}", marker=MARKERS[index % len(MARKERS)], label=name)
    ticks = sorted({each["length"] for each in records})
    axis.set(xscale="log", yscale="log", xlabel="tokens cached", ylabel="seconds per token of a sequence")
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.yaxis.set(major_locator=LogLocator(subs=(1, 2, 5)), major_formatter="{x:g}")
    axis.minorticks_off()
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", frameon=False, fontsize=8)
    axis.set_title(decoding_claim(records), loc="left", fontweight="bold", fontsize=11)
    _save(figure, path)


def decoding_claim(records: Sequence[dict[str, Any]]) -> str:
    """What the fastest plan takes of full attention's time at the greatest length and the smallest batch."""
    longest, least = max(each["length"] for each in records), min(each["batch"] for each in records)
    here = [each for each in records if (each["length"], each["batch"]) == (longest, least)]
    rivals = [each for each in here if each["plan"] != FULL and each["ratio_to_full"] is not None]
    if not rivals:
        return f"Full attention after {longest:,} tokens"
    best = min(rivals, key=lambda each: float(each["ratio_to_full"]))
    name = best["plan"].partition("(")[0]
    return f"{name}: {best['ratio_to_full']:.2f}x full attention's time per token after {longest:,} tokens"


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _reference(axis: "Axes", score: float) -> None:
    """Full attention, as a line behind the others."""
    axis.axhline(score, color=GREY, lw=1, ls="--", zorder=0)
    axis.annotate(
        "full attention", (0, score), (3, 3), xycoords=("axes fraction", "data"), textcoords="offset points",
        color=GREY, fontsize=8,
    )  # fmt: skip


def _label_ends(axis: "Axes", ends: Sequence[tuple[float, float, str, Any]]) -> None:
    """Name lines at their ends (x, y, name, color), pushed apart where they would lie on each other."""
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.autoscale_view()  # otherwise the limits are settled only when the figure is drawn
    to_panel = axis.transScale + axis.transLimits  # data -> share of the panel
    height = [min(1.0, max(0.0, float(to_panel.transform((x, y))[1]))) for x, y, _, _ in ends]
    for index, y in spread(height).items():
        x, _, name, color = ends[index]
        axis.annotate(
            name, (x, y), (7, 0), xycoords=("data", "axes fraction"), textcoords="offset points",
            color=color, fontsize=9, va="center", annotation_clip=False, zorder=1.5,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.8},
        )  # fmt: skip


def spread(heights: Sequence[float], apart: float = APART) -> dict[int, float]:
    """Heights 0 .. 1 by index, moved so that all are at least `apart`, around where they were."""
    order = sorted(range(len(heights)), key=lambda index: (heights[index], -index))
    placed: dict[int, float] = {}
    for index in order:
        placed[index] = max(heights[index], max(placed.values(), default=-1.0) + apart)
    over = max([0.0, *(placed[index] - 1 for index in order)])
    return {index: height - over for index, height in placed.items()}


def _save(figure: "Figure", path: Path) -> None:
    with writing(path):
        figure.savefig(path, dpi=120, format="png")
