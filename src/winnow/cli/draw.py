"""What all pictures share: figures, colours, lines that are named where they end, and files. Needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnow.cli.terminal import writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY = "0.45"
MARKERS = "os^vDP*X"  # curves often lie on each other
APART = 0.055  # least distance of two labels, of the height of a panel


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches, whose parts make room for each other."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def shades(count: int) -> list[Any]:
    """So many colours in an order that one sees, dark to light."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.9 * index / max(1, count - 1)) for index in range(count)]


def plain(axis: "Axes", grid: str = "both") -> None:
    """Only the axes that are read, and a faint grid behind the data."""
    axis.grid(axis=grid, alpha=0.25)  # type: ignore[arg-type]
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def claim_title(axis: "Axes", claim: str, below: str = "") -> None:
    """What the picture says, in bold; `below`: what it shows."""
    axis.set_title(f"{claim}\n" if below else claim, loc="left", fontweight="bold", fontsize=11)
    if below:
        axis.text(0, 1.02, below, transform=axis.transAxes, fontsize=9, color=GREY)


def reference(axis: "Axes", value: float, name: str = "full attention") -> None:
    """A named line behind the others."""
    axis.axhline(value, color=GREY, lw=1, ls="--", zorder=0)
    axis.annotate(
        name, (0, value), (3, 3), xycoords=("axes fraction", "data"), textcoords="offset points", color=GREY, fontsize=8
    )


def label_ends(axis: "Axes", ends: Sequence[tuple[float, float, str, Any]], apart: float = APART) -> None:
    """Name lines at their ends (x, y, name, color), pushed apart where they would lie on each other."""
    plain(axis)
    axis.autoscale_view()  # otherwise the limits are settled only when the figure is drawn
    to_panel = axis.transScale + axis.transLimits  # data -> share of the panel
    height = [min(1.0, max(0.0, float(to_panel.transform((x, y))[1]))) for x, y, _, _ in ends]
    for index, y in spread(height, apart).items():
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


def save(figure: "Figure", path: Path) -> None:
    """As PNG. Raises InputError where the file cannot be written."""
    with writing(path):
        figure.savefig(path, dpi=120, format="png")
