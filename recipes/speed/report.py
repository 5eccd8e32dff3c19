"""The table and the picture of a sweep: `python -m recipes.speed.report DIR --json FILE --markdown FILE --plot PNG`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from recipes.reporting import Record, write_report

from .arms import LAYERS

TRAININGS = {"post hoc": "not trained", "lora": "LoRA", "full": "all parameters"}
ANCHORS = {"bos": "first token", "none": "no anchor"}
COLOURS = {"post hoc": "#8c8c8c", "lora": "#1f77b4", "full": "#d95f02"}


def read(directory: Path) -> list[Record]:
    """The records of a run of `python -m recipes.speed`, without what only a repetition needs."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(directory.glob("*.json"))]
    for record in found:
        trained = record.pop("trained")
        keep = ("plan", "base", "recipe", "data", "result")
        record["trained"] = {key: trained[key] for key in keep if key in trained} if trained else None
    return sorted(found, key=lambda r: (list(TRAININGS).index(r["training"]), r["anchors"] != "bos", r["cutoff"]))


def markdown(records: list[Record]) -> str:
    """Two tables: the mean over tasks by cutoff, and every arm by task."""
    cutoffs = sorted({record["cutoff"] for record in records})
    lines = ["| training | anchors | " + " | ".join(f"K = {k}" for k in cutoffs) + " |"]
    lines.append("| --- | --- |" + " ---: |" * len(cutoffs))
    for training, anchors in _groups(records):
        line = {r["cutoff"]: r for r in records if r["training"] == training and _anchored(r, anchors)}
        cells = [f"{100 * line[k]['mean']:.1f}" if k in line else "" for k in cutoffs]
        lines.append(f"| {TRAININGS[training]} | {ANCHORS[anchors]} | {' | '.join(cells)} |")
    tasks = [each["task"] for each in records[0]["accuracy"]]
    lines += ["", "| training | anchors | K | rows | " + " | ".join(tasks) + " | mean | loops |"]
    lines.append("| --- | --- | ---: | ---: |" + " ---: |" * (len(tasks) + 2))
    for record in records:
        scores = " | ".join(f"{100 * each['score']:.1f}" for each in record["accuracy"])
        anchors = ANCHORS[record["anchors"]] if record["cutoff"] < LAYERS else "-"
        lines.append(
            f"| {TRAININGS[record['training']]} | {anchors} | {record['cutoff']} "
            f"| {100 * record['rows_computed'] / record['rows_full']:.1f} | {scores} "
            f"| {100 * record['mean']:.1f} | {100 * record['loop_rate']:.1f} |"
        )
    return "\n".join(lines) + "\n"


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
    for training, anchors in _groups(records):
        line = [r for r in records if r["training"] == training and _anchored(r, anchors)]
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


def _groups(records: list[Record]) -> Iterable[tuple[str, str]]:
    return dict.fromkeys((r["training"], r["anchors"]) for r in records if r["cutoff"] < LAYERS)


def _anchored(record: Record, anchors: str) -> bool:
    """Full depth has no cutoff, so it ends the lines of all anchors."""
    return record["cutoff"] == LAYERS or record["anchors"] == anchors


def _score(record: Record, task: str) -> float:
    return next(each["score"] for each in record["accuracy"] if each["task"] == task)


if __name__ == "__main__":
    write_report("recipes.speed", __doc__, read, markdown, plot)
