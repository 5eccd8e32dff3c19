"""Figures of docs/results/cpu-*.md and of decode steps under `speed`: seconds beside the machine's own limits."""

from __future__ import annotations

from .tables import Block, Columns, Record, code, count, number, table, versions

COLUMNS: Columns = {
    "tokens": count("length"),
    "arm": code("arm"),
    "seconds": lambda row: f"{row['median_s']:.4g} ± {row['spread_s']:.2g}",
    "of stock": number("ratio_to_stock", 3),
    "GB/s": number("gb_s", 1),
    "GFLOP/s": number("gflop_s", 0),
    "floor, s": lambda row: f"{row['floor_s']:.4g}",
    "x floor": number("times_floor", 2),
}
WHAT = {
    "decode": "One decode step after that many cached tokens; all caches hold the same random units.",
    "prefill": "Prefill of a prompt, Winnow in chunks of {chunk}, stock in one forward.",
}


def steps(document: Record) -> str:
    """The table and what it is of."""
    records, rates, machine = document["records"], document["rates"], document["machine"]
    of_full: Columns = {"of full": number("ratio_to_full", 3)} if "ratio_to_full" in records[0] else {}
    return (
        f"{table({**COLUMNS, **of_full}, records)}\n\n{WHAT[document['what']].format(**document)} "
        f"Medians of {document['repeats']} turns, ± half the interquartile "
        f"range; the arms take turns. {machine['device']}, {machine['threads']} threads, {document['dtype']}. Between "
        f"the measurements: copy {rates['copy_gb_s']:.1f} GB/s, read {rates['read_gb_s']:.1f} GB/s, GEMM "
        f"{rates['gemm_gflop_s']:.0f} GFLOP/s; the floor is the bytes over the read rate or the FLOPs over the GEMM "
        f"rate, whichever is longer. {versions(machine)}."
    )


BLOCKS = {
    name: Block(steps, (f"{name}.json",))
    for name in ("cpu-decode", "cpu-decode-streaming", "cpu-prefill", "speed-decode")
}
