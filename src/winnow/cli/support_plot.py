"""The picture of how steady the support of attention is: by the age of a selection, by layer and head, by sentence."""

import itertools
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from winnow.cli.draw import GREY, new_figure, plain, save, spread
from winnow.cli.support_view import headline, mean
from winnow.diagnosis.support_figures import Age, Heads, LayerSupport, Support

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RECALL, OVERLAP = "#1f5fa8", "#d1662b"
BAND = 0.18  # how opaque
LEAST = 0.2  # of the most often seen distance: what is seen less is not drawn
WRITTEN = 96  # cells of a map at most that are labelled
TICKS = 16  # labelled layers at most


def plot_support(path: Path, found: Support, model: str) -> None:
    """Above: recall and overlap against the steps since the last refresh. Below: both by layer and KV head, and inside
    sentences against their first tokens."""
    figure = new_figure(10, 8)
    parts = figure.subfigures(2, 1, squeeze=False, height_ratios=(1, 1.1))[:, 0]
    _by_age(parts[0].subplots(), drawn(found.ages), losing(found.layers))
    recall, overlap, sentences = parts[1].subplots(1, 3, width_ratios=(1, 1, 1.1))
    _map(recall, [each.recall_inside for each in found.layers], "recall inside sentences, %", "Blues")
    _map(overlap, [each.overlap_inside for each in found.layers], "overlap with the step before, %", "Oranges")
    _bars(sentences, found)
    figure.suptitle(claim(found), x=0.01, ha="left", fontweight="bold", fontsize=12)
    figure.supxlabel(headline(found, model), x=0.01, ha="left", fontsize=8, color=GREY, wrap=True)
    save(figure, path)


def claim(found: Support) -> str:
    """What the picture says of the median head, in one line."""
    first, *later = drawn(found.ages)
    made = f"A selection catches {100 * statistics.median(_all(first.recall)):.0f} % of the attention when it is made"
    if not later:
        return made
    least, distance = min((statistics.median(_all(age.recall)), age.distance) for age in later)
    return f"{made}, and {100 * least:.0f} % at the least, {distance} step{'s' * (distance > 1)} later"


def drawn(ages: Sequence[Age]) -> list[Age]:
    """The ages from 0 on that are seen often enough."""
    most = max(max(age.counted) for age in ages)
    return list(itertools.takewhile(lambda age: age.distance == 0 or max(age.counted) >= LEAST * most, ages))


def losing(layers: Sequence[LayerSupport]) -> int:
    """The layer whose recall inside sentences is farthest below the best."""
    known = [each for each in layers if mean(each.recall_inside) is not None]
    return max(known or layers, key=lambda each: (mean(each.best) or 0.0) - (mean(each.recall_inside) or 0.0)).layer


def _by_age(axis: "Axes", ages: Sequence[Age], layer: int) -> None:
    """Medians over all heads of all layers, and the band of their middle half; and the mean recall of one layer."""
    from matplotlib.ticker import MaxNLocator

    at, ends = [age.distance for age in ages], []
    lines = {
        "best recall of\nas many units": ([_all(age.best) for age in ages], GREY, "--", 0.0),
        "recall of the\nlast selection": ([_all(age.recall) for age in ages], RECALL, "o-", BAND),
        "overlap with\nthe refresh": ([_all(age.overlap) for age in ages], OVERLAP, "s-", BAND),
    }
    for name, (heads, color, style, opaque) in lines.items():
        low, middle, high = zip(*map(_quartiles, heads), strict=True)
        axis.fill_between(at, low, high, color=color, alpha=opaque, lw=0)
        axis.plot(at, middle, style, color=color, ms=3.5, lw=2 if opaque else 1.2)
        ends.append((name, color, middle[-1] / 100))
    seen = [(age.distance, 100 * known) for age in ages if (known := mean(age.recall[layer])) is not None]
    if seen:
        axis.plot(*zip(*seen, strict=True), color=RECALL, lw=1.2, ls=":")
        ends.append((f"recall in\nlayer {layer}", RECALL, seen[-1][1] / 100))
    axis.set(xlabel="steps since the refresh", ylabel="% (median head, middle half)", ylim=(0, 102))
    axis.set_xlim(at[0] - 0.2, max(at[-1], 1))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    for index, height in spread([end for _, _, end in ends], apart=0.13).items():
        name, color, _ = ends[index]
        axis.annotate(name, (1.01, height), xycoords="axes fraction", color=color, fontsize=9, va="center")
    plain(axis, "y")


def _map(axis: "Axes", layers: Sequence[Heads], title: str, colors: str) -> None:
    """A row per layer, a column per KV head."""
    cells = [[float("nan") if head is None else 100 * head for head in heads] for heads in layers]
    axis.imshow(cells, cmap=colors, vmin=0, vmax=100, aspect="auto")
    step = 1 + (len(layers) - 1) // TICKS
    axis.set(xticks=range(len(cells[0])), yticks=range(0, len(layers), step), xlabel="KV head", ylabel="layer")
    axis.set_title(title, loc="left", fontsize=9)
    if sum(map(len, cells)) > WRITTEN:
        return
    for layer, head in itertools.product(range(len(cells)), range(len(cells[0]))):
        if (cell := cells[layer][head]) == cell:
            color = "white" if cell > 60 else "0.2"
            axis.text(head, layer, f"{cell:.0f}", ha="center", va="center", fontsize=8, color=color)


def _bars(axis: "Axes", found: Support) -> None:
    """Means over all heads, inside sentences and at boundaries; a dot per head."""
    bars = [("recall", "inside", RECALL), ("recall", "boundary", RECALL)]
    bars += [("overlap", "inside", OVERLAP), ("overlap", "boundary", OVERLAP)]
    for place, (figure, where, color) in enumerate(bars):
        heads = _all(getattr(each, f"{figure}_{where}") for each in found.layers)
        if not heads:
            axis.annotate("none", (place, 0), (0, 3), textcoords="offset points", ha="center", fontsize=8, color=GREY)
            continue
        height = 100 * (mean(heads) or 0.0)
        axis.bar(place, height, width=0.75, color=color, alpha=0.75 if where == "inside" else 0.4)
        offsets = [place + 0.5 * (index / max(1, len(heads) - 1) - 0.5) for index in range(len(heads))]
        axis.scatter(offsets, [100 * head for head in heads], s=6, color=color, zorder=3)
        axis.annotate(
            f"{height:.0f}", (place, 0), (0, 4), textcoords="offset points", ha="center", fontsize=9, color="black"
        )
    axis.set_xticks(range(4), ["inside", "first token"] * 2, fontsize=8)
    axis.set(ylim=(0, 102), xlabel="of a sentence")
    axis.set_title("recall, overlap: %, a dot per head", loc="left", fontsize=9)
    plain(axis, "y")


def _all(layers: Iterable[Heads]) -> list[float]:
    """The figures of all heads that have one, layer after layer."""
    return [head for heads in layers for head in heads if head is not None]


def _quartiles(heads: Sequence[float]) -> tuple[float, float, float]:
    """In percent."""
    if len(heads) == 1:
        return (100 * heads[0],) * 3
    low, middle, high = statistics.quantiles(heads, n=4, method="inclusive")
    return 100 * low, 100 * middle, 100 * high
