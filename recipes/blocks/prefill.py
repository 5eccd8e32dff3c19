"""Figures of docs/results/prefill.md."""

from __future__ import annotations

from .tables import Block, Columns, Record, code, machine, mib, number, table


def plans(told: Record) -> str:
    """A row per plan: its time and, of a model that has learned, how far it is from full attention."""
    columns: Columns = {
        "plan": code("plan"),
        "seconds": number("median_s", 2),
        "faster": faster,
        "pairs read, %": lambda row: "" if row["pairs"] is None else f"{100 * row['pairs']:.0f}",
    }
    if told["tail"]:
        columns |= {"KL": number("kl", 4), "KL, most": number("kl_most", 3)}
    length = told["summary"][0]["length"]
    known = told["model"] if told["tail"] else f"{told['model']}'s shape, random weights"
    about = (
        f"{known}, {length:,} tokens, {told['threads']} threads, {told['repeats']} turns: the median prefill; "
        "faster: full attention's time over the plan's in the same turn, the median, the least and the most; pairs of "
        "a query and a key, of those in layers where the plan chooses"
    )
    ending = f"; KL of the next token, nats, the mean and the most over {told['tail']} tokens" if told["tail"] else ""
    return f"{table(columns, told['summary'])}\n\n{about}{ending}."


def faster(row: Record) -> str:
    """Times full attention's speed, of the median turn, the least and the most."""
    return f"{row['speedup']:.2f} ({row['speedup_low']:.2f} to {row['speedup_high']:.2f})"


def beyond(told: Record) -> str:
    """A row per plan and length: keys that were found, and the memory that it took."""
    columns = {
        "positions": lambda row: f"{row['times']:.0f} x",
        "plan": code("plan"),
        "found": lambda row: f"{row['score'] * row['examples']:.0f} of {row['examples']}",
        "by depth": lambda row: " ".join(f"{100 * each:.0f}" for each in row["by_depth"].values()),
        "TTFT, s": number("ttft_s", 1),
        "memory of the plan, MiB": mib("total_bytes", 1),
        "of it beside units, MiB": mib("aux_bytes", 1),
        "files, MiB": mib("disk_bytes", 0),
        "process, MiB": mib("peak_bytes", 0),
    }
    depths = ", ".join(told["summary"][0]["by_depth"])
    about = (
        f"{told['model']}, {told['positions']:,} positions, {machine(told)}; depth: of the needle in the text, "
        f"{depths}; memory: the most that a plan holds, units in memory and all beside them; process: weights included."
    )
    return f"{table(columns, told['summary'])}\n\n{about}"


BLOCKS = {
    "prefill-smollm2": Block(plans, ("prefill-smollm2.json",)),
    "prefill-qwen3": Block(plans, ("prefill-qwen3.json",)),
    "prefill-qwen3-share": Block(plans, ("prefill-qwen3-share.json",)),
    "prefill-beyond": Block(beyond, ("prefill-beyond.json",)),
    "prefill-beyond-number": Block(beyond, ("prefill-beyond-number.json",)),
}
