"""What pictures of benchmarks share: colours, claims, and lines that are named where they end."""

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from winnow.cli.draw import APART, GREY, plain, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LETTERS_PER_INCH = 10  # of the figure, of which the axes are a part


def shades(count: int) -> list[Any]:
    """So many colours in an order that one sees, dark to light."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.9 * index / max(1, count - 1)) for index in range(count)]


def claim_title(axis: "Axes", claim: str, below: str = "") -> None:
    """What the picture says, in bold; `below`: what it shows, in as many lines as it needs."""
    lines = wrap(below, round(LETTERS_PER_INCH * axis.figure.get_figwidth()))
    axis.set_title(claim + "\n" * len(lines), loc="left", fontweight="bold", fontsize=11)
    if lines:
        axis.text(0, 1.02, "\n".join(lines), transform=axis.transAxes, fontsize=9, color=GREY)


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
