"""The picture of what every KV head kept: a panel per layer and head, moments from top to bottom, the text across."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from winnow.cli.draw import GREY, new_figure, save
from winnow.inspector.runs import count, pack, positions
from winnow.inspector.trace import Trace
from winnow.plan import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

KEPT, EVICTED = "#0b5cad", "#eef1f4"
PANELS = (10.0, 9.0)  # inches that all panels take together, across and down, where each may be as large as it likes
LEAST, MOST = (1.2, 0.42), (6.0, 1.5)  # inches of one panel
ROW = 0.3  # inches that one moment takes at most
AROUND = (1.2, 2.3)  # inches beside the panels, and above and below
MARGIN = 0.005  # of a panel's width: else its frame would hide the first tokens, which are often kept
DPI = 120


def plot_retained(path: Path, trace: Trace) -> None:
    """A panel per layer (the last on top) and KV head; a row per snapshot, shaded by the share of tokens kept."""
    save(retained_figure(trace), path)


def retained_figure(trace: Trace) -> "Figure":
    """The figure: one axes per layer and head, the last layer's first, and one for the legend."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    layers, heads, total = trace.layers, trace.kv_heads, trace.snapshots[-1].known
    across = min(MOST[0], max(LEAST[0], PANELS[0] / heads))
    down = min(MOST[1], ROW * len(trace.snapshots), max(LEAST[1], PANELS[1] / layers))
    figure = new_figure(AROUND[0] + heads * across, AROUND[1] + layers * down)
    axes = figure.subplots(layers, heads, squeeze=False, sharex=True)
    for layer, line in zip(reversed(range(layers)), axes, strict=True):
        for head, axis in enumerate(line):
            image = _panel(axis, shares(trace, layer, head, min(total, int(across * DPI))), total)
        line[0].set_ylabel(f"layer {layer}", rotation=0, ha="right", va="center", fontsize=9)
    for head, axis in enumerate(axes[0]):
        axis.set_title(f"KV head {head}", loc="left", fontsize=9, color=GREY, pad=3)
    for axis in axes[-1]:
        # None at the right end, where it would run into the first of the next panel.
        axis.xaxis.set_major_locator(MaxNLocator(nbins=max(2, int(2 * across)), integer=True, prune="upper"))
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.tick_params(bottom=True, labelsize=8)
        axis.set_xlabel("position in the text", loc="left", fontsize=8)
    ticks = [0, 0.1, 0.25, 0.5, 1]
    bar = figure.colorbar(
        image, ax=axes, location="bottom", ticks=ticks, format=PercentFormatter(1, 0),
        shrink=0.35, aspect=25, anchor=(1.0, 0.5), pad=0.01,
    )  # fmt: skip
    bar.ax.tick_params(labelsize=8)
    bar.set_label("share of the tokens kept; white: not known yet", fontsize=9)
    bar.outline.set_edgecolor("0.8")
    figure.suptitle(claim(trace), x=0.01, ha="left", fontweight="bold", fontsize=12)
    figure.supxlabel(_subtitle(trace), x=0.01, ha="left", fontsize=9, color=GREY)
    return figure


def claim(trace: Trace) -> str:
    """What the picture says, in one line."""
    last = trace.snapshots[-1]
    kept = [runs for heads in last.kept for runs in heads]
    least, most = min(map(count, kept)), max(map(count, kept))
    anywhere = len({position for runs in set(kept) for position in positions(runs)})
    none = 100 - 100 * anywhere / last.known
    units = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    budget = _budget(trace)
    beside = f" (budget={budget}, and the {most - budget:,} newest on top)" if budget and most > budget else ""
    return f"A KV head keeps {units} of {last.known:,} tokens{beside}; {none:.0f} % of them stay in no head"


def _budget(trace: Trace) -> int | None:
    """Of units, where the plan has one."""
    found: int | None = getattr(Plan.parse(trace.plan).keep, "budget", None)
    return found


def shares(trace: Trace, layer: int, head: int, columns: int) -> npt.NDArray[np.float64]:
    """The share of a column's known tokens that a KV head holds, [snapshots, columns]; NaN where none is known.

    Columns divide the tokens that the last snapshot knows, of which there are at least as many.
    """
    total = trace.snapshots[-1].known
    edges = np.arange(columns + 1) * total // columns
    rows = np.full((len(trace.snapshots), columns), np.nan)
    for row, snapshot in zip(rows, trace.snapshots, strict=True):
        gaps = np.array([0, *pack(snapshot.kept[layer][head])])  # between the edges of runs: 0, skip, take, skip, ...
        takes = np.where(np.arange(len(gaps)) % 2, 0, gaps)
        before = np.interp(edges, gaps.cumsum(), takes.cumsum())  # units held before each edge of a column
        known = np.diff(np.minimum(edges, snapshot.known))
        np.divide(np.diff(before), known, out=row, where=known > 0)
    return rows


def _panel(axis: "Axes", values: npt.NDArray[np.float64], total: int) -> "AxesImage":
    """One head of one layer. values: [snapshots, columns]; total: tokens across."""
    from matplotlib.colors import LinearSegmentedColormap, PowerNorm

    colors = LinearSegmentedColormap.from_list("kept", [EVICTED, KEPT]).with_extremes(bad="white")
    norm = PowerNorm(0.5, 0, 1)  # a few units among many tokens are what one looks for
    axis.set_yticks([])
    axis.tick_params(bottom=False)
    axis.spines[:].set_color("0.8")
    extent = (0, total, len(values), 0)
    image = axis.imshow(values, cmap=colors, norm=norm, aspect="auto", interpolation="nearest", extent=extent)
    axis.set_xlim(-MARGIN * total, (1 + MARGIN) * total)
    return image


def _subtitle(trace: Trace) -> str:
    """What is drawn: the plan and the model; what the rows of a panel are."""
    known = [snapshot.known for snapshot in trace.snapshots]
    rows = f"rows: {len(known)} moments, from {known[0]:,} tokens known (top) to {known[-1]:,}"
    beside = ""
    if _budget(trace) is not None:
        beside = "; beside the budget stay the prompt's last tokens (local), and what is newer than the last eviction"
    return f"{trace.plan}, {trace.model}\n{rows if len(known) > 1 else 'when the prompt was there'}{beside}"
