"""The picture of a diagnosis: attention, how selective it is, and curvature, over the layers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from winnow.cli.draw import GREY, new_figure, plain, save, spread
from winnow.diagnosis.diagnose import Diagnosis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PROMPT, OTHER = "#1f5fa8", "#d1662b"  # the prompt, and what is not the prompt
MASSES = {
    "prompt": ("the prompt", PROMPT),
    "bos": ("position 0", "#7fb2e5"),
    "decode": ("earlier answer", "#e59a5f"),
    "itself": ("itself", OTHER),
    "sinks": ("sinks", "0.8"),
}
Line = tuple[Sequence[float | None], str]  # values, color
LEAST_DRAWN = 0.005  # a share that is nowhere larger has no name


def plot_diagnosis(path: Path, found: Diagnosis, model: str) -> None:
    """Three panels over the layers, with the recommended cutoff as a line between two of them."""
    figure = new_figure(8, 8)
    axes = figure.subplots(3, 1, sharex=True, height_ratios=(1.25, 1, 1))
    _masses(axes[0], found)
    shares: dict[str, Line] = {
        "selective mass": ([100 * each.selective for each in found.layers], PROMPT),
        "entropy, H/ln n": ([None if each.evenness is None else 100 * each.evenness for each in found.layers], GREY),
    }
    _lines(axes[1], shares, "how it reads the prompt, %", (0, 100))
    turns: dict[str, Line] = {
        "prompt": ([point.prompt for point in found.trajectory], PROMPT),
        "decode": ([point.decode for point in found.trajectory], OTHER),
    }
    _lines(axes[2], turns, "curvature, degrees")
    ticks = [*range(len(found.layers)), len(found.layers)]
    step = max(1, len(ticks) // 16)
    axes[2].set_xticks(ticks[::step], [*map(str, ticks[:-1]), "out"][::step])
    axes[2].set_xlabel("layer (curvature: of the hidden states that enter it)")
    for axis in axes:
        axis.axvline(found.cutoff.layer - 0.5, color="black", lw=1.2, ls="--")
        axis.axvspan(found.cutoff.layer - 0.5, len(found.layers) + 0.5, color="0.5", alpha=0.12, lw=0, zorder=0)
        plain(axis, "y")
    axes[0].set_xlim(-0.6, len(found.layers) + 0.5)
    figure.suptitle(claim(found), x=0.01, ha="left", fontweight="bold", fontsize=12)
    subtitle = f"{model}, {found.prompts} prompts, {found.steps:,} decode steps, full attention"
    axes[0].set_title(subtitle, loc="left", fontsize=9, color=GREY)
    save(figure, path)


def claim(found: Diagnosis) -> str:
    """What the picture says, in one line."""
    cutoff, first = found.cutoff, found.cutoff.rules[0]
    if cutoff.layer == cutoff.layers:
        return f"No cutoff is recommended: {first.name} asks for all {cutoff.layers} layers"
    tail = next(rule for rule in cutoff.rules if rule.name == "tail share").values[cutoff.layer]
    return f"Recommended cutoff {cutoff.layer} of {cutoff.layers}: {100 * tail:.0f} % of the selective mass is above it"


def _masses(axis: "Axes", found: Diagnosis) -> None:
    """Where the attention goes, stacked to 100 %; named at the last bar."""
    places, bottom = range(len(found.layers)), [0.0] * len(found.layers)
    heights, names = [], []
    for name, (label, color) in MASSES.items():
        shares = [100 * getattr(each, name) for each in found.layers]
        axis.bar(places, shares, bottom=bottom, width=0.8, color=color)
        if max(shares) > 100 * LEAST_DRAWN:
            heights.append((bottom[-1] + shares[-1] / 2) / 100)
            names.append((label, color))
        bottom = [below + share for below, share in zip(bottom, shares, strict=True)]
    axis.set(ylim=(0, 100), ylabel="attention of a decode step, %")
    for index, height in spread(heights, apart=0.08).items():
        label, color = names[index]
        axis.annotate(label, (1.01, height), xycoords="axes fraction", color=color, fontsize=9, va="center")


def _lines(
    axis: "Axes",
    lines: Mapping[str, Line],
    label: str,
    limits: tuple[float, float] | None = None,
) -> None:
    """A line per name, which stands at its end."""
    ends = []
    for (name, (values, color)), marker in zip(lines.items(), "os", strict=True):
        places = [place for place, value in enumerate(values) if value is not None]
        known = [value for value in values if value is not None]
        axis.plot(places, known, color=color, marker=marker, ms=4, lw=1.8)
        ends.append((name, color, known[-1] if known else 0.0))
    axis.set_ylabel(label)
    axis.autoscale_view()
    axis.set_ylim(limits)
    low, high = axis.get_ylim()
    for index, height in spread([(end - low) / (high - low) for _, _, end in ends], apart=0.1).items():
        name, color, _ = ends[index]
        axis.annotate(name, (1.01, height), xycoords="axes fraction", color=color, fontsize=9, va="center")
