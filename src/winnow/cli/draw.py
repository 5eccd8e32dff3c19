"""What all pictures share: figures, axes, places of labels, and files. Needs matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from winnow.errors import writing

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


def plain(axis: "Axes", grid: str = "both") -> None:
    """Only the axes that are read, and a faint grid behind the data."""
    axis.grid(axis=grid, alpha=0.25)  # type: ignore[arg-type]
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def spread(heights: Sequence[float], apart: float = APART) -> dict[int, float]:
    """Heights 0 .. 1 by index, moved so that all are at least `apart`, around where they were."""
    order = sorted(range(len(heights)), key=lambda index: (heights[index], -index))
    placed: dict[int, float] = {}
    for index in order:
        placed[index] = max(heights[index], max(placed.values(), default=-1.0) + apart)
    over = max([0.0, *(placed[index] - 1 for index in order)])
    return {index: height - over for index, height in placed.items()}


def reference(axis: "Axes", value: float, name: str = "full attention") -> None:
    """A named line behind the others."""
    axis.axhline(value, color=GREY, lw=1, ls="--", zorder=0)
    axis.annotate(
        name, (0, value), (3, 3), xycoords=("axes fraction", "data"), textcoords="offset points", color=GREY, fontsize=8
    )


def save(figure: "Figure", path: Path) -> None:
    """As PNG. Raises InputError where the file cannot be written."""
    with writing(path):
        figure.savefig(path, dpi=120, format="png")
