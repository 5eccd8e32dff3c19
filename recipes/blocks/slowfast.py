"""Figures of docs/results/slowfast.md, and what the README says of them."""

from __future__ import annotations

from recipes.slowfast.figures import difference, score, share

from .tables import Block, Column, Columns, Record, one, table

TITLES = {
    "selectors, often": "Selectors, slow steps often",
    "selectors, rarely": "Selectors, slow steps rarely",
    "triggers": "Triggers",
    "relatives": "Relatives at the units that slow-fast reading reads",
    "ablations": "One parameter at a time",
}
OFTEN, RARELY = "peaks, memory 0.5, 1/16, often", "peaks, memory 0.9, 1/16, rarely"  # what others are compared with
CODES, PAIRS = "multi_needle-16-forced", "kv_list-16-forced"
STOCK = "transformers"


def markdown(records: list[Record]) -> str:
    """A table per group and length: an arm per line, a task per column."""
    sections = []
    for group, title in TITLES.items():
        for length in sorted({record["length"] for record in records if record["group"] == group}):
            sections.append(f"## {title}, {length:,} tokens\n\n{_table(records, group, length)}")
    return "\n\n".join(sections) + "\n"


def _table(records: list[Record], group: str, length: int) -> str:
    """Full attention stands in every table, and the arms that others are compared with."""
    always = ["full"] + ([] if group.startswith("selectors") else [OFTEN, RARELY])
    shown = [
        record
        for record in records
        if record["length"] == length and (record["group"] == group or record["arm"] in always)
    ]
    mine = {record["task"] for record in shown if record["group"] == group}
    shown = [record for record in shown if record["task"] in mine]
    full = {record["task"]: record for record in shown if record["arm"] == "full"}
    tasks = [task for task in dict.fromkeys(record["task"] for record in (*full.values(), *shown)) if task in mine]
    arms: dict[str, list[Record]] = {}
    for record in shown:
        arms.setdefault(record["arm"], []).append(record)
    return table(_columns(tasks, full), [{"arm": name, "records": found} for name, found in arms.items()])


def _columns(tasks: list[str], full: dict[str, Record]) -> Columns:
    """Budget, examples of a task, slow steps and units read over all tasks of an arm; then the tasks, each in %."""
    return {
        "": lambda arm: arm["arm"],
        "budget": lambda arm: _budget(arm["records"][0]),
        "n": lambda arm: _examples(arm["records"]),
        "slow steps, %": lambda arm: _slow(arm["records"]),
        "units read, %": lambda arm: f"{share(arm['records'], 'units_read', ('units_full',)):.1f}",
        **{task: _task(task, full.get(task)) for task in tasks},
    }


def _budget(record: Record) -> str:
    budget = record["length"] // record["share"]
    return str(budget) if f"budget={budget}" in record["plan"] else ""


def _examples(records: list[Record]) -> str:
    counts = sorted({len(record["rows"]) for record in records})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _slow(records: list[Record]) -> str:
    has_slow = records[0]["plan"] == "full" or "slowfast" in records[0]["plan"]
    return f"{share(records, 'slow_steps', ('slow_steps', 'fast_steps')):.1f}" if has_slow else ""


def _task(task: str, full: Record | None) -> Column:
    def cell(arm: Record) -> str:
        found = [record for record in arm["records"] if record["task"] == task]
        return compared(found[0], full) if found else ""

    return cell


def compared(record: Record, full: Record | None) -> str:
    """A score, and its difference to full attention's on the same examples: `95.8 (-1.5; -2.7 to -0.2)`."""
    if full is None or full is record:
        return f"{score(record):.1f}"
    gained = difference(record, full)
    return f"{score(record):.1f} ({gained.points:+.1f}; {gained.low:+.1f} to {gained.high:+.1f})"


def decoding(runs: dict[str, Record]) -> str:
    """Times of all runs in one table, and the copy rate of each."""
    rows = [record | {"run": name} for name, run in runs.items() for record in run["records"]]
    rates = ", ".join(f"run {name} {run['rates']['copy_gb_s']:.1f}" for name, run in runs.items())
    return f"{table(DECODING, rows)}\n\nCopy rates, GB/s: {rates}."


def _phase(phase: str, name: str, factor: float, digits: int) -> Column:
    """A figure of the fast or the slow steps."""
    return lambda row: f"{factor * row[phase][name]:.{digits}f}" if row[phase] else ""


def _ratio(name: str, digits: int) -> Column:
    return lambda row: "" if row[name] is None else f"{row[name]:.{digits}f}"


DECODING: Columns = {
    "run": lambda row: row["run"],
    "cached tokens": lambda row: f"{row['length']:,}",
    "batch": lambda row: str(row["batch"]),
    "plan": lambda row: "stock" if row["plan"] == STOCK else row["plan"].partition("(")[0],
    "TPOT, ms": lambda row: f"{1000 * row['tpot_s']:.1f}",
    "of full": _ratio("ratio_to_full", 3),
    "of stock": _ratio("ratio_to_stock", 4),
    "tokens/s": lambda row: f"{row['tokens_per_s']:.1f}",
    "of one": _ratio("tokens_of_one", 2),
    "grown": _ratio("growth", 2),
    "fast, ms": _phase("fast", "seconds", 1000, 1),
    "GB/s": _phase("fast", "gb_s", 1, 1),
    "of copy, %": _phase("fast", "share_of_copy", 100, 0),
    "slow, ms": _phase("slow", "seconds", 1000, 1),
}


def listing(records: list[Record], arm: str, task: str, length: int) -> tuple[Record, Record]:
    """What an arm measured on a task, and full attention on the same."""
    mine = one(records, arm=arm, task=task, length=length)
    return mine, one(records, arm="full", task=task, length=length)


def lists(records: list[Record]) -> str:
    """What parts of `peaks` are worth on lists, slow steps rarely, of one length."""
    return _table(records, "ablations", records[0]["length"])


BLOCKS = {
    "slowfast-lists": Block(lists, ("slowfast-lists.json",)),
    "slowfast": Block(markdown, ("slowfast.json",)),
    "slowfast-decoding": Block(decoding, ("slowfast-decoding.json",)),
}
