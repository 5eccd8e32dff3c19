"""Figures of docs/serving.md: a server under load."""

from __future__ import annotations

from .tables import Block, Columns, Record, count, key, machine, table

STREAMS: Columns = {
    "prompts": key("kind"),
    "asked": count("requests"),
    "lost": count("lost"),
    "as alone": lambda row: f"{row['same']} of {row['compared']}",
    "another's": count("anothers"),
    "prompt tokens": lambda row: f"{row['prompt'][0]:,} to {row['prompt'][1]:,}",
}


def streams(told: Record) -> str:
    """What became of every request."""
    plans = ", ".join(f"`{plan}`" for plan in dict.fromkeys(each["plan"] for each in told["records"]))
    about = f"{told['model']}, {told['new']} new tokens each, plans in turns: {plans}; {machine(told)}."
    return f"{table(STREAMS, told['summary'])}\n\n{about}"


BLOCKS = {"serving-deterministic": Block(streams, ("serving-deterministic.json",))}
