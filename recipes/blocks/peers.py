"""Figures of docs/results/peers.md: one decode step, beside what people would use instead."""

from __future__ import annotations

from statistics import mean

from .tables import MIB, Block, Columns, Record, code, one, table

SPEED = "speed(cutoff=0.75) + snapkv(budget=3276, local=0)"
SNAPKV = "snapkv(budget=3276, local=0)"
KVPRESS = "kvpress:SnapKVPress(0.9)"


def steps(document: Record) -> str:
    """The table of arms."""
    hf, llama = (_mean(document, arm) for arm in ("hf", "llama.cpp"))
    columns: Columns = {
        "arm": code("arm"),
        "median, ms": lambda row: f"{1000 * row['median_s']:.1f} ± {1000 * row['spread_s']:.1f}",
        "mean, ms": lambda row: f"{1000 * mean(row['seconds']):.1f}",
        "times faster than hf": lambda row: f"{hf / mean(row['seconds']):.1f}x",
        "than llama.cpp": lambda row: f"{llama / mean(row['seconds']):.2f}x",
        "cache, MiB": lambda row: f"{row['cache_bytes'] / MIB:,.1f}",
        "units kept": lambda row: "-" if row["kept_units"] is None else f"{row['kept_units']:,}",
    }
    return table(columns, document["records"])


def _mean(document: Record, arm: str) -> float:
    return mean(one(document["records"], arm=arm)["seconds"])


def about(document: Record) -> str:
    """What was measured."""
    machine = document["machine"]
    return (
        f"A decode step after {document['length']:,} tokens of {document['shape']}'s shape with random weights, "
        f"{document['dtype']} (llama.cpp: bf16 weights, f16 units), {machine['threads']} threads of an "
        f"{machine['device']}. All caches hold the same random units instead of a prompt's. "
        f"{document['repeats'] * document['turns']} steps an arm in {document['turns']} turns, after "
        f"{document['warmup']} to warm up."
    )


def told(document: Record) -> str:
    """What the table says."""
    hf, llama, full, fastest = (_mean(document, arm) for arm in ("hf", "llama.cpp", "full", SPEED))
    quickest, whole = one(document["records"], arm=SPEED), one(document["records"], arm="full")
    ours, theirs = one(document["records"], arm=SNAPKV), one(document["records"], arm=KVPRESS)
    return (
        "Ratios are of means, so that the slow steps of `slowfast`, every twelfth here, count. Full attention under "
        f"Winnow is {hf / full:.1f} times as fast as stock transformers and {llama / full:.2f} times as fast as "
        f"llama.cpp. `{SPEED}` is {hf / fastest:.1f} and {llama / fastest:.2f} times as fast, and holds "
        f"{100 * quickest['kept_units'] / whole['kept_units']:.1f} % of the units that they do. At equal units "
        f"({ours['kept_units']:,}), Winnow's `snapkv` takes {mean(ours['seconds']) / mean(theirs['seconds']):.2f} of "
        f"kvpress's time per token and holds {ours['cache_bytes'] / MIB:.1f} MiB against "
        f"{theirs['cache_bytes'] / MIB:.1f}: the votes of the units, in float32, are counted, and of no use any more "
        "after the prompt. Random weights say nothing of quality, and this plan's is not measured: arms of "
        "[frontier](frontier.md) that evict with `snapkv`, its votes of 32 tokens and pooled over 5, lose most of what "
        "is asked."
    )


BLOCKS = {
    "peers-about": Block(about, ("peers-decode.json",)),
    "peers-decode": Block(steps, ("peers-decode.json",)),
    "peers-told": Block(told, ("peers-decode.json",)),
}
