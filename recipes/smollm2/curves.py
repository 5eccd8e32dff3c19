"""Locret over its budget and its stabilizers: `python -m recipes.smollm2.curves FILE --plot PNG`.

FILE is what `python -m benchmarks quality table` writes of recipes/quality/locret-curves.json.
"""

from __future__ import annotations

import argparse
import json
import re
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.quality.figures import ALL
from recipes.reporting import Record

from winnow.cli.draw import new_figure, plain, reference, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EIGHTH = Fraction(1, 8)  # the budget at which stabilizers are tried
SHARE = re.compile(r"(budget|stabilizers)={?([\d/]+)}?")
# What a row of panels shows, by the part of the document: its label, the field over all kinds, the figure, times what.
SHOWN = {
    "scores": ("points from full attention (95 %)", "task", "difference", 100),
    "windows": ("KL from full attention, nats (95 %)", "domain", "kl", 1),
}
Curve = list[tuple[Fraction, Record]]


def curves(rows: list[Record]) -> dict[str, Curve]:
    """What lies over the budget and over the stabilizers, both shares of a prompt: the least first."""
    over: dict[str, Curve] = {"budget": [], "stabilizers": []}
    for row in rows:
        given = {name: Fraction(share) for name, share in SHARE.findall(row["arm"])}
        if "budget" in given and "stabilizers" not in given:
            over["budget"].append((given["budget"], row))
        if given.get("budget") == EIGHTH:
            stay = given.get("stabilizers", EIGHTH / 4)  # a quarter of the budget where nothing is said
            over["stabilizers"].append((stay, row))
    return {name: sorted(curve, key=lambda point: point[0]) for name, curve in over.items()}


def plot(document: Record, path: Path) -> None:
    """Points above, KL below; over the budget on the left, over the stabilizers on the right."""
    figure = new_figure(10, 7)
    panels = figure.subplots(2, 2, sharex="col", sharey="row")
    for axes, (part, (label, field, figured, times)) in zip(panels, SHOWN.items(), strict=True):
        over = curves([row for row in document[part] if row[field] == ALL])
        for axis, (name, curve) in zip(axes, over.items(), strict=True):
            _draw(axis, curve, figured, times)
            if name == "budget":
                axis.set_xscale("log", base=2)
            axis.set_xticks([float(share) for share, _ in curve], [str(share) for share, _ in curve])
            reference(axis, 0)
            plain(axis)
        axes[0].set_ylabel(label)
    panels[1][0].set_xlabel("budget, of the prompt")
    panels[1][1].set_xlabel(f"stabilizers, of the prompt, in a budget of {EIGHTH}")
    save(figure, path)


def _draw(axis: Axes, curve: Curve, figured: str, times: int) -> None:
    told = [row[figured] for _, row in curve]
    below = [max(0.0, times * (each["mean"] - each["low"])) for each in told]
    above = [max(0.0, times * (each["high"] - each["mean"])) for each in told]
    axis.errorbar(
        [float(share) for share, _ in curve], [times * each["mean"] for each in told], [below, above],
        marker="o", lw=1.6, elinewidth=0.8, capsize=2,
    )  # fmt: skip


def main() -> None:
    """Parse the flags, draw."""
    parser = argparse.ArgumentParser(prog="python -m recipes.smollm2.curves", description=__doc__)
    parser.add_argument("file", type=Path, help="a table's JSON")
    parser.add_argument("--plot", type=Path, required=True)
    flags = parser.parse_args()
    plot(json.loads(flags.file.read_text(encoding="utf-8")), flags.plot)


if __name__ == "__main__":
    main()
