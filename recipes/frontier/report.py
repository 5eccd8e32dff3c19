"""The tables and the picture of the measurements: `python -m recipes.frontier.report DIR --json FILE --page FILE --plot
PNG`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from recipes.pages import fill
from recipes.reporting import Record
from recipes.slowfast.figures import difference, score

from .arms import TASKS, VERBS, arms
from .figures import costs, held
from .picture import plot

TITLE = "All policies and their compositions: quality against every cost"
COMMANDS = """```
python -m recipes.frontier --out DIR
python -m recipes.frontier.report DIR --json docs/results/frontier.json --page PAGE --plot docs/results/frontier.png
```

![score over rows, bytes and units, by verb](frontier.png)
"""
COSTS = ("rows, %", "units held, %", "memory, %", "units read, %", "TTFT, s", "TPOT, ms")


def read(directory: Path) -> list[Record]:
    """The measurements of a run of `python -m recipes.frontier`, by length and verb, then in the order of the arms.

    number: of an arm that was measured, the same at all lengths, from 0 for full attention; None: refused everywhere.
    """
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(directory.glob("*.json"))]
    known = {arm.name: (VERBS.index(arm.verb), place, arm.verb) for place, arm in enumerate(arms())}
    mine = [record | {"verb": known[record["arm"]][2]} for record in found if record["arm"] in known]
    mine.sort(key=lambda record: known[record["arm"]])
    measured = dict.fromkeys(record["arm"] for record in mine if record["rows"])
    numbers = {arm: number for number, arm in enumerate(measured)}
    numbered = [record | {"number": numbers.get(record["arm"])} for record in mine]
    return sorted(numbered, key=lambda record: record["length"])


def markdown(records: list[Record]) -> str:
    """A table per length, full attention first, then by verb; then the plans that were refused, with the reason."""
    measured = [record for record in records if record["rows"]]
    lines = [COMMANDS]
    for length in dict.fromkeys(record["length"] for record in measured):
        lines += [f"## {length:,} prompt tokens", "", *_table([r for r in measured if r["length"] == length]), ""]
    if refused := {record["arm"]: record["refused"] for record in records if record["refused"]}:
        lines += ["## Refused", "", *(f"- `{arm}`: {reason}" for arm, reason in refused.items()), ""]
    return "\n".join([*lines, *_about(measured)]).strip() + "\n"


def _table(records: list[Record]) -> list[str]:
    full = next(record for record in records if record["arm"] == "full")
    tasks = [task for task in TASKS if any(row["task"] == task for row in full["rows"])]
    headings = ["", "verb", "plan", "adapter", "n", "score, %", "less full (95 %)", *tasks, *COSTS]
    lines = [f"| {' | '.join(headings)} |", "| ---: | --- | --- | --- |" + " ---: |" * (len(headings) - 4)]
    for record in records:
        by_task = [f"{_task_score(record, task):.0f}" for task in tasks]
        cells = [str(record["number"]), record["verb"], f"`{record['plan']}`", record["adapter"] or ""]
        cells += [
            str(len(record["rows"])),
            f"{score(record):.1f}",
            _gained(record, full),
            *by_task,
            *_costs(record, full),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _gained(record: Record, full: Record) -> str:
    if record is full:
        return ""
    gained = difference(record, full)
    return f"{gained.points:+.1f} ({gained.low:+.1f} to {gained.high:+.1f})"


def _task_score(record: Record, task: str) -> float:
    scores = [row["score"] for row in record["rows"] if row["task"] == task]
    return 100 * sum(scores) / len(scores)


def _costs(record: Record, full: Record) -> list[str]:
    rows = record["rows"]
    ttft, tpot = (sorted(row[name] for row in rows)[len(rows) // 2] for name in ("ttft_s", "tpot_s"))
    counted, units = costs(record, full), held(record, full, "cache_bytes")
    shares = (counted["rows"], units, counted["bytes"], counted["units"])
    return [*(f"{value:.1f}" for value in shares), f"{ttft:.2f}", f"{1000 * tpot:.1f}"]


def _about(measured: list[Record]) -> list[str]:
    commits = ", ".join(sorted({record["commit"] for record in measured}))
    machine, environment = measured[0]["machine"], measured[0]["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    return [
        "Score: mean over the tasks, each as often; in brackets the 95 % interval of the difference to full attention "
        "on the same examples (examples resampled). Rows computed, bytes of units held at the "
        "end, the most bytes held with all that a plan holds beside units (memory), and units read by decode steps: "
        "counted, % of full attention's. TTFT and TPOT: medians, of one thread, while other processes "
        "may have shared the machine.",
        "",
        f"{environment['model']}, {environment['dtype']}, {machine['device']}, {environment['threads']} thread, chunks "
        f"of {environment['prefill_chunk']}; commit {commits}; {versions}.",
    ]


def main() -> None:
    """Parse the flags, write what was asked for; without --page the tables are printed."""
    parser = argparse.ArgumentParser(prog="python -m recipes.frontier.report", description=__doc__)
    parser.add_argument("directory", type=Path, help="the directory of a run")
    for name in ("--json", "--page", "--plot"):
        parser.add_argument(name, type=Path)
    flags = parser.parse_args()
    records = read(flags.directory)
    if not any(record["arm"] == "full" for record in records):
        parser.error(f"{flags.directory} holds no measurement of full attention; run python -m recipes.frontier first")
    if flags.json:
        flags.json.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    if flags.page:
        fill(flags.page, TITLE, markdown(records))
    else:
        print(markdown(records), end="")
    if flags.plot:
        plot(records, flags.plot)


if __name__ == "__main__":
    main()
