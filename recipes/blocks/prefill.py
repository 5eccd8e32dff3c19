"""Figures of docs/results/prefill.md."""

from __future__ import annotations

from .tables import Block, Record, code, number, table


def plans(told: Record) -> str:
    """A row per plan: its time and how far it is from full attention."""
    columns = {
        "plan": code("plan"),
        "seconds": number("median_s", 2),
        "faster": _faster,
        "pairs read, %": lambda row: "" if row["pairs"] is None else f"{100 * row['pairs']:.0f}",
        "KL": number("kl", 4),
        "KL, most": number("kl_most", 3),
    }
    length = told["summary"][0]["length"]
    about = (
        f"{told['model']}, {length:,} tokens, {told['threads']} threads, {told['repeats']} turns: the median prefill; "
        "faster: full attention's time over the plan's in the same turn, the median, the least and the most; pairs of "
        "a query and a key, of those in layers where the plan chooses; KL of the next token, nats, the mean and the "
        f"most over {told['tail']} tokens."
    )
    return f"{table(columns, told['summary'])}\n\n{about}"


def _faster(row: Record) -> str:
    return f"{row['speedup']:.2f} ({row['speedup_low']:.2f} to {row['speedup_high']:.2f})"


BLOCKS = {"prefill-smollm2": Block(plans, ("prefill-smollm2.json",))}
