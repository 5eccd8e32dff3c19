"""Figures of docs/results/stores.md."""

from __future__ import annotations

from .quality import measured
from .tables import Block, Columns, Record, code, count, machine, mib, percent, ranged, scored, table

STORES: Columns = {
    "plan": code("plan"),
    "KL, nats": lambda row: ranged(row["kl"], 4),
    "top-1, %": lambda row: ranged(row["top1"], 1, 100),
    "perplexity, x": lambda row: ranged(row["ratio"], 3),
    "units, MiB": mib("cache_bytes"),
    "units, %": percent("cache_share"),
    "memory, %": percent("total_share"),
}


def stores(told: Record) -> str:
    """A table per length, and the answers to questions."""
    rows, parts = told["summary"], []
    for length in dict.fromkeys(row["length"] for row in rows):
        parts += [f"After {length:,} tokens:", table(STORES, [row for row in rows if row["length"] == length])]
    if told["scores"]:
        tasks = list(dict.fromkeys(row["task"] for row in told["scores"]))
        order = list(dict.fromkeys(row["plan"] for row in rows))
        found = sorted(by_plan(told["scores"]), key=lambda row: (row["length"], order.index(row["plan"])))
        parts += [f"Answers, %, of {told['questions']} questions each:", table(answers(tasks), found)]
    parts.append(
        f"{told['model']}, {rows[0]['passages']} passages, {told['fed']} tokens fed after each; intervals of 95 %, "
        "passages resampled; KL, perplexities and shares: against full attention's, in pairs, and a peer's against the "
        f"first of its family; {machine(told)}."
    )
    return "\n\n".join([*parts, *(f"Left out: `{plan}`: {reason}" for plan, reason in told["skipped"].items())])


def by_plan(scores: list[Record]) -> list[Record]:
    """A record per length and plan, with the score of every task by its name."""
    found: dict[tuple[int, str], Record] = {}
    for row in scores:
        mine = found.setdefault((row["length"], row["plan"]), {"length": row["length"], "plan": row["plan"]})
        mine[row["task"]] = row
    return list(found.values())


def answers(tasks: list[str]) -> Columns:
    """A column for every task."""
    each = {task: (lambda row, task=task: scored(row[task])) for task in tasks}
    return {"prompt": count("length"), "plan": code("plan"), **each}


BLOCKS = {
    "stores": Block(stores, ("stores.json",)),
    "stores-verbs": Block(measured, ("stores-verbs.json",)),
    "stores-budgets": Block(measured, ("stores-budgets.json",)),
    "stores-budgets-needle": Block(measured, ("stores-budgets-needle.json",)),
    "stores-locret-quantized": Block(measured, ("stores-locret-quantized.json",)),
}
