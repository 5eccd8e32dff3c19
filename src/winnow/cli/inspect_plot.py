"""The picture of what every KV head kept: a panel per layer and head, moments from top to bottom, the text across."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from winnow.cli.draw import GREY, save
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
LEFT, RIGHT, TOP, BOTTOM, GAP = 0.95, 0.25, 1.1, 1.2, 0.09  # inches around the panels and between two
LABEL = 0.25  # inches: half of a number below a panel
MARGIN = 0.005  # of a panel's width: else its frame would hide the first tokens, which are often kept
DPI = 120


def plot_retained(path: Path, trace: Trace) -> None:
    """A panel per layer (the last on top) and KV head; a row per snapshot, shaded by the share of tokens kept."""
    save(retained_figure(trace), path)


def retained_figure(trace: Trace) -> "Figure":
    """The figure: one axes per layer and head, the last layer's first, and one for the legend."""
    from matplotlib.figure import Figure

    layers, heads = trace.layers, trace.kv_heads
    across = min(MOST[0], max(LEAST[0], PANELS[0] / heads))
    down = min(MOST[1], ROW * len(trace.snapshots), max(LEAST[1], PANELS[1] / layers))
    wide = LEFT + RIGHT + heads * across + (heads - 1) * GAP
    high = TOP + BOTTOM + layers * down + (layers - 1) * GAP
    figure = Figure(figsize=(wide, high))
    axes = figure.subplots(
        layers, heads, squeeze=False,
        gridspec_kw={
            "left": LEFT / wide, "right": 1 - RIGHT / wide, "bottom": BOTTOM / high, "top": 1 - TOP / high,
            "wspace": GAP / across, "hspace": GAP / down,
        },
    )  # fmt: skip
    columns = min(trace.snapshots[-1].known, int(across * DPI))
    for layer, line in zip(reversed(range(layers)), axes, strict=True):
        for head, axis in enumerate(line):
            image = _panel(axis, shares(trace, layer, head, columns), trace.snapshots[-1].known)
        line[0].set_ylabel(f"layer {layer}", rotation=0, ha="right", va="center", fontsize=9)
    for head, axis in enumerate(axes[0]):
        axis.set_title(f"KV head {head}", loc="left", fontsize=9, color=GREY, pad=3)
    _ticks(axes[-1], across, trace.snapshots[-1].known)
    _legend(figure, image)
    figure.suptitle(claim(trace), x=0.15 / wide, y=1 - 0.12 / high, ha="left", va="top", fontweight="bold", fontsize=12)
    figure.text(0.15 / wide, 1 - 0.42 / high, _subtitle(trace), ha="left", va="top", fontsize=9, color=GREY)
    return figure


def claim(trace: Trace) -> str:
    """What the picture says, in one line."""
    last = trace.snapshots[-1]
    kept = [runs for heads in last.kept for runs in heads]
    least, most = min(map(count, kept)), max(map(count, kept))
    anywhere = len({position for runs in set(kept) for position in positions(runs)})
    none = 100 - 100 * anywhere / last.known
    units = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    return f"A KV head keeps {units} of {last.known:,} tokens; {none:.0f} % of them stay in no head"


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
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_color("0.8")
    extent = (0, total, len(values), 0)
    image = axis.imshow(values, cmap=colors, norm=norm, aspect="auto", interpolation="nearest", extent=extent)
    axis.set_xlim(-MARGIN * total, (1 + MARGIN) * total)
    return image


def _ticks(line: Iterable["Axes"], across: float, total: int) -> None:
    """Positions below the lowest line of panels, each `across` inches wide and `total` tokens."""
    from matplotlib.ticker import MaxNLocator

    # None so far to the right that it would run into the first of the next panel.
    last = total * (1 - LABEL / across)
    places = [p for p in MaxNLocator(nbins=max(2, int(2 * across)), integer=True).tick_values(0, total) if p <= last]
    for axis in line:
        axis.set_xticks(places, [f"{place:,.0f}" for place in places], fontsize=8)
        axis.set_xlabel("position in the text", loc="left", fontsize=8)


def _legend(figure: "Figure", image: "AxesImage") -> None:
    """What the shades mean, at the lower right."""
    from matplotlib.ticker import PercentFormatter

    wide, high = figure.get_size_inches()
    length = min(3.0, wide - LEFT - RIGHT)
    axis = figure.add_axes((1 - (RIGHT + length) / wide, 0.48 / high, length / wide, 0.13 / high))
    bar = figure.colorbar(image, cax=axis, orientation="horizontal", ticks=[0, 0.1, 0.25, 0.5, 1])
    bar.ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    bar.ax.tick_params(labelsize=8)
    bar.set_label("share of the tokens kept; white: not known yet", fontsize=9)
    bar.outline.set_edgecolor("0.8")


def _subtitle(trace: Trace) -> str:
    """What is drawn: the plan and the model; what the rows of a panel are."""
    known = [snapshot.known for snapshot in trace.snapshots]
    rows = f"rows: {len(known)} moments, from {known[0]:,} tokens known (top) to {known[-1]:,}"
    beside = ""
    if getattr(Plan.parse(trace.plan).keep, "budget", None) is not None:
        beside = "; beside the budget stay the prompt's last tokens (local), and what is newer than the last eviction"
    return f"{trace.plan}, {trace.model}\n{rows if len(known) > 1 else 'when the prompt was there'}{beside}"
