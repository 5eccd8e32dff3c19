"""The tables and the picture of the measurements: `python -m recipes.slowfast.report DIR --json FILE --markdown FILE
--plot PNG`."""

from __future__ import annotations

import json
from pathlib import Path

from recipes.reporting import Record, write_report

from .arms import SCHEDULES, TASKS, arms, reference
from .figures import difference, score, share
from .picture import plot

TITLES = {
    **{f"selectors, {name}": f"Selectors, slow steps {name}" for name in SCHEDULES},
    "triggers": "Triggers",
    "relatives": "Relatives at the units that slow-fast reading reads",
    "ablations": "One parameter at a time",
}


def read(directory: Path) -> list[Record]:
    """The measurements of `python -m recipes.slowfast --out DIR`, in the order of arms, lengths and tasks."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(directory.glob("*.json"))]
    known, tasks = {arm.name: (place, arm) for place, arm in enumerate(arms())}, list(TASKS)
    mine = [record for record in found if record["arm"] in known]
    for record in mine:
        arm = known[record["arm"]][1]
        record |= {"group": arm.group, "share": arm.share}
    return sorted(mine, key=lambda r: (known[r["arm"]][0], r["length"], tasks.index(r["task"])))


def markdown(records: list[Record]) -> str:
    """A table per group and length: an arm per line, a task per column."""
    lines: list[str] = []
    for group, title in TITLES.items():
        for length in sorted({record["length"] for record in records if record["group"] == group}):
            lines += [f"## {title}, {length:,} tokens", "", *_table(records, group, length), ""]
    return "\n".join(lines).strip() + "\n"


def _table(records: list[Record], group: str, length: int) -> list[str]:
    """Full attention stands in every table, and the arms that others are compared with."""
    always = ["full"] + ([] if group.startswith("selectors") else [reference(name) for name in SCHEDULES])
    shown = [
        record
        for record in records
        if record["length"] == length and (record["group"] == group or record["arm"] in always)
    ]
    mine = {record["task"] for record in shown if record["group"] == group}
    tasks = [task for task in TASKS if task in mine]
    shown = [record for record in shown if record["task"] in mine]
    full = {record["task"]: record for record in shown if record["arm"] == "full"}
    lines = ["| | budget | n | slow steps, % | units read, % | " + " | ".join(tasks) + " |"]
    lines.append("| --- | ---: | ---: | ---: | ---: |" + " ---: |" * len(tasks))
    for name in dict.fromkeys(record["arm"] for record in shown):
        arm = {record["task"]: record for record in shown if record["arm"] == name}
        cells = [_cell(arm[task], full.get(task)) if task in arm else "" for task in tasks]
        lines.append(f"| {' | '.join([name, *_costs(list(arm.values()), length), *cells])} |")
    return lines


def _costs(arm: list[Record], length: int) -> list[str]:
    """Budget, examples of a task, slow steps and units read over all tasks of an arm."""
    first, counts = arm[0], sorted({len(record["rows"]) for record in arm})
    budgeted = "budget=" + str(length // first["share"]) in first["plan"]
    has_slow = first["plan"] == "full" or "slowfast" in first["plan"]
    return [
        f"{length // first['share']}" if budgeted else "",
        str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}",
        f"{share(arm, 'slow_steps', ('slow_steps', 'fast_steps')):.1f}" if has_slow else "",
        f"{share(arm, 'units_read', ('units_full',)):.1f}",
    ]


def _cell(record: Record, full: Record | None) -> str:
    if full is None or full is record:
        return f"{score(record):.1f}"
    gained = difference(record, full)
    return f"{score(record):.1f} ({gained.points:+.1f}; {gained.low:+.1f} to {gained.high:+.1f})"


if __name__ == "__main__":
    write_report("recipes.slowfast", __doc__, read, markdown, plot)
