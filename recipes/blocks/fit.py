"""Figures of docs/fit.md."""

from __future__ import annotations

from .tables import Block, Columns, Record, code, mib, table

COLUMNS: Columns = {
    "plan": code("plan"),
    "units, MiB": mib("units", 1),
    "beside, MiB": mib("beside", 1),
    "working, MiB": mib("working", 1),
    "in all, MiB": mib("total", 1),
    "fits": lambda row: "yes" if row["fits"] else "no",
    "longest prompt, tokens": lambda row: "any" if row["longest"] is None else f"{row['longest']:,}",
    "limited by": lambda row: row["limit"] or "",
}


def fit(told: Record) -> str:
    """What plans take of a machine."""
    parts = {"the weights": "weights_bytes", "libraries": "libraries_bytes", "what is available": "memory_bytes"}
    sizes = ", ".join(f"{name} {mib(field, 1)(told)} MiB" for name, field in parts.items())
    about = (
        f"{told['model']}, {told['length']:,} tokens and {told['new']:,} of an answer; {sizes}. In all: with weights "
        "and libraries; units: the most held; beside: what the plan holds besides, at most; working: what a step takes "
        "and gives back, estimated from above."
    )
    return f"{table(COLUMNS, told['plans'])}\n\n{about}"


BLOCKS = {"fit": Block(fit, ("fit.json",))}
