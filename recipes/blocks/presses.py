"""Figures of docs/presses.md: what plans keep beside the presses that they translate."""

from __future__ import annotations

from .tables import Block, Columns, Record, code, machine, percent, ranged, table

ROWS: Columns = {
    "press": code("press"),
    "kept": lambda row: f"{row['kept']:,.0f}",
    "by both, %": percent("shared", 2),
    "least, %": percent("least", 2),
    "below 99 %": lambda row: f"{row['below']} of {row['heads']}",
    "KL, plan": lambda row: f"{row['kl']['mean']:.4f}",
    "KL, press": lambda row: f"{row['kl_theirs']['mean']:.4f}",
    "less the press's": lambda row: ranged(row["apart"], 4),
    "bytes, plan, %": percent("cache_share"),
    "bytes, press, %": percent("cache_share_theirs"),
}


def presses(told: Record) -> str:
    """A row per press."""
    rows = told["summary"]
    about = (
        f"{told['model']}, {rows[0]['windows']} windows of real texts, {told['length'] - told['fed']:,} tokens and "
        f"{told['fed']} fed one by one, kvpress {told['kvpress']['kvpress']}, the same weights in {told['dtype']} for "
        "both. Kept: units per layer and KV head; least: by the layer and head that share least, a mean over windows; "
        "below: layers and heads that share less; KL: of the next token, nats, each from its own full attention; less: "
        "in pairs, windows resampled, 95 %; bytes: of the units at the end, of full attention's; "
        f"{machine(told)}."
    )
    return f"{table(ROWS, rows)}\n\n{about}"


BLOCKS = {"presses": Block(presses, ("presses.json",))}
