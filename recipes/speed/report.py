"""The table and the picture of a sweep: `python -m recipes.speed.report DIR --json FILE --markdown FILE --plot PNG`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from recipes.blocks.speed import ANCHORS, TRAININGS, anchored, groups, markdown
from recipes.reporting import Record, write_report

from .arms import LAYERS

COLOURS = {"post hoc": "#8c8c8c", "lora": "#1f77b4", "full": "#d95f02"}


def read(directory: Path) -> list[Record]:
    """The records of a run of `python -m recipes.speed`, without what only a repetition needs."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(directory.glob("*.json"))]
    for record in found:
        trained = record.pop("trained")
        keep = ("plan", "base", "recipe", "data", "result")
        record["trained"] = {key: trained[key] for key in keep if key in trained} if trained else None
    return sorted(found, key=lambda r: (list(TRAININGS).index(r["training"]), r["anchors"] != "bos", r["cutoff"]))


def plot(records: list[Record], path: Path) -> None:
    """Left: the mean over tasks; right: the task that depends most on K; a line per way of training and anchor."""
    tasks = [each["task"] for each in records[0]["accuracy"]]
    deep = [record for record in records if record["cutoff"] >= LAYERS // 2]
    spread = {task: [_score(record, task) for record in deep] for task in tasks}
    hardest = max(tasks, key=lambda task: max(spread[task]) - min(spread[task]))
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    for axis, title, score in (
        (left, f"mean of {len(tasks)} tasks", lambda record: record["mean"]),
        (right, hardest, lambda record: _score(record, hardest)),
    ):
        _draw(axis, records, score)
        axis.set(title=title, xlabel="layers that compute the prompt, of 8", ylim=(-3, 103))
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    left.set_ylabel("score, %")
    right.legend(frameon=False, fontsize=9, loc="lower right")
    figure.savefig(path, dpi=130)


def _draw(axis: Axes, records: list[Record], score: Any) -> None:
    for training, anchors in groups(records):
        line = [r for r in records if r["training"] == training and anchored(r, anchors)]
        line.sort(key=lambda r: r["cutoff"])
        axis.plot(
            [r["cutoff"] for r in line],
            [100 * score(r) for r in line],
            color=COLOURS[training],
            linestyle="-" if anchors == "bos" else ":",
            marker="o" if anchors == "bos" else "s",
            markerfacecolor=COLOURS[training] if anchors == "bos" else "white",
            markersize=6 if anchors == "bos" else 4,
            label=f"{TRAININGS[training]}, {ANCHORS[anchors]}",
        )
    axis.axvline(3 * LAYERS / 4, color="black", alpha=0.2, linewidth=1, linestyle="--", zorder=0)


def _score(record: Record, task: str) -> float:
    return next(each["score"] for each in record["accuracy"] if each["task"] == task)


if __name__ == "__main__":
    write_report("recipes.speed", __doc__, read, markdown, plot)
