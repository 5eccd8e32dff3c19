"""The tables and the picture of the measurements: `python -m recipes.locret.report DIR --json FILE --markdown FILE
--plot PNG`."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from recipes.blocks.locret import markdown
from recipes.reporting import Record, write_report

from .arms import FOUR, arms

COLOURS = {"locret": "#d1495b", "random_heads": "#8c8c8c", "streaming": "#c9a227", "sirllm": "#6a994e"}


def read(directory: Path) -> list[Record]:
    """The records of a run of `python -m recipes.locret`, in the order of the arms."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in directory.glob("*.json")]
    order = {(arm.group, arm.name): place for place, arm in enumerate(arms())}
    return sorted(found, key=lambda record: (order[record["group"], record["name"]], record["length"]))


def plot(records: list[Record], path: Path) -> None:
    """Left: number retrieval over the budget, a line per policy; right: Locret's tasks over the budget, by length."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    short = [record for record in records if record["group"] in ("policies", "curve")]
    for name in dict.fromkeys(record["name"] for record in short):
        mine = [record for record in short if record["name"] == name]
        if name != "full":
            _line(left, mine, "number", name, COLOURS.get(name), strong=name == "locret")
    full = next(record for record in short if record["name"] == "full")
    score = next(each["score"] for each in full["accuracy"] if each["task"] == "number")
    left.axhline(100 * score, color="black", linewidth=1, linestyle=":", label="full attention")
    left.set(title=f"number, {full['length']:,} tokens", ylabel="score, %", ylim=(-3, 103))
    for group in ("policies", "long"):
        mine = [record for record in records if record["group"] == group and record["name"].startswith("locret")]
        for task, colour in zip(FOUR, ("#d1495b", "#00798c", "#8c8c8c", "#edae49"), strict=True):
            if mine:
                label = f"{task}, {mine[0]['length']:,}"
                _line(right, mine, task, label, colour, strong=True, dashed=group == "long")
    right.set(title="locret")
    for axis in (left, right):
        axis.set(xscale="log", xlabel="budget, share of the prompt")
        axis.set_xticks([1 / 32, 1 / 16, 1 / 8], ["1/32", "1/16", "1/8"])
        axis.minorticks_off()
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8, loc="center right")
    figure.savefig(path, dpi=130)


def _line(
    axis: Axes,
    records: list[Record],
    task: str,
    label: str,
    colour: str | None,
    *,
    strong: bool,
    dashed: bool = False,
) -> None:
    points = []
    for record in records:
        scores = [100 * each["score"] for each in record["accuracy"] if each["task"] == task]
        points += [(1 / share, score) for share, score in zip(record["shares"], scores, strict=False)]
    if points:
        points.sort()
        axis.plot(
            [share for share, _ in points],
            [score for _, score in points],
            color=colour,
            marker="o",
            linewidth=2.4 if strong else 1.3,
            linestyle="--" if dashed else "-",
            markersize=5 if strong else 3.5,
            label=label,
        )


if __name__ == "__main__":
    write_report("recipes.locret", __doc__, read, markdown, plot)
