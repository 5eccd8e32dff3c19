"""A search as a picture, drawn with matplotlib (the extra `bench`)."""

from pathlib import Path
from typing import TYPE_CHECKING

from winnow.cli.draw import new_figure, plain, reference, save
from winnow.cli.tune_view import COUNTED
from winnow.tune.frontier import Figures
from winnow.tune.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOOR = 1e-5  # nats; smaller KLs are drawn there


def plot_tuning(path: Path, result: Result) -> None:
    """KL over each cost: all plans tried, those that no other beats, which are numbered and named, and the best."""
    save(tuning_figure(result), path)


def tuning_figure(result: Result) -> "Figure":
    """A panel per cost, and the names of the plans below all."""
    figure = new_figure(4 * len(COUNTED), 4 + 0.16 * len(result.frontier))
    panels = figure.subplots(1, len(COUNTED), sharey=True)
    best = result.recommended and result.recommended.searched
    for axis, column in zip(panels, COUNTED, strict=True):
        cost = column.value
        for label, rows, style in (
            ("tried", result.tried, {"color": "0.75", "marker": "."}),
            ("not beaten", result.frontier, {"color": "C0", "marker": "o"}),
            ("recommended", [best] if best else [], {"color": "C3", "marker": "*", "s": 150, "zorder": 3}),
        ):
            axis.scatter([cost(row) for row in rows], [_kl(row) for row in rows], label=label, **style)
        numbers: dict[tuple[str, str], list[int]] = {}  # of the plans that lie on each other
        for number, row in enumerate(result.frontier, start=1):
            numbers.setdefault((f"{cost(row):.3g}", f"{_kl(row):.2g}"), []).append(number)
        for (x, y), here in numbers.items():
            told = ", ".join(map(str, here))
            axis.annotate(told, (float(x), float(y)), (5, 5), textcoords="offset points", fontsize=8)
        if (limit := result.limits.max_kl) is not None:
            reference(axis, limit, "--max-kl")
        axis.set(xlabel=column.label, yscale="log")
        plain(axis)
    panels[0].set_ylabel("KL from full attention, nats")
    names = [f"{number}: {row.plan}" for number, row in enumerate(result.frontier, start=1)]
    figure.supxlabel("\n".join(names), x=0.01, ha="left", fontsize=8)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def _kl(row: Figures) -> float:
    return max(row.kl, FLOOR)
