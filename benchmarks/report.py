"""The records of decode or prefill as a table and as Markdown."""

from collections.abc import Callable
from typing import Any

from rich.table import Table

from winnow.cli.terminal import new_table

Record = dict[str, Any]
COLUMNS: dict[str, Callable[[Record], str]] = {
    "tokens": lambda r: f"{r['length']:,}",
    "arm": lambda r: r["arm"],
    "seconds": lambda r: f"{r['median_s']:.4g} ± {r['spread_s']:.2g}",
    "ratio": lambda r: f"{r['ratio_to_stock']:.3f}",
    "GB/s": lambda r: f"{r['gb_s']:.1f}",
    "GFLOP/s": lambda r: f"{r['gflop_s']:.0f}",
    "floor, s": lambda r: f"{r['floor_s']:.4g}",
    "x floor": lambda r: f"{r['times_floor']:.2f}",
}


def caption(document: Record) -> str:
    """What was measured, where, and how to read it."""
    rates, machine = document["rates"], document["machine"]
    what = {
        "decode": "one decode step after that many cached tokens; all caches hold the same random units",
        "prefill": f"prefill of a prompt, Winnow in chunks of {document['chunk']}, stock in one forward",
    }[document["what"]]
    return (
        f"{what}. Medians of {document['repeats']} turns, ± half the interquartile range; the arms take turns. "
        f"{machine['device']}, {machine['threads']} threads, {document['dtype']}. Between the measurements: copy "
        f"{rates['copy_gb_s']:.1f} GB/s, read {rates['read_gb_s']:.1f} GB/s, GEMM {rates['gemm_gflop_s']:.0f} GFLOP/s; "
        "the floor is the bytes over the read rate or the FLOPs over the GEMM rate, whichever is longer."
    )


def table(document: Record) -> Table:
    """A section per length, a row per arm."""
    view = new_table(f"{document['shape']}: {document['what']}", caption(document))
    columns = columns_of(document)
    for heading in columns:
        view.add_column(heading, justify="left" if heading == "arm" else "right", no_wrap=heading != "arm")
    records = document["records"]
    for record, following in zip(records, [*records[1:], None], strict=True):
        last = following is None or following["length"] != record["length"]
        view.add_row(*(show(record) for show in columns.values()), end_section=last)
    return view


def columns_of(document: Record) -> dict[str, Callable[[Record], str]]:
    """The columns, with the ratio to full attention where it was an arm beside other plans."""
    if all("ratio_to_full" not in record for record in document["records"]):
        return COLUMNS
    names = list(COLUMNS)
    at = names.index("ratio") + 1
    of_full = {"of full": lambda r: f"{r['ratio_to_full']:.3f}"}
    return {name: COLUMNS[name] for name in names[:at]} | of_full | {name: COLUMNS[name] for name in names[at:]}


def markdown(document: Record) -> str:
    """The table, the caption and how to repeat it."""
    typed: str = document.get("typed") or document["command"]  # of older records, `command` is what was typed
    lines = [f"# {document['shape']}: {document['what']}", "", "```", typed, "```", ""]
    columns = columns_of(document)
    lines += ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for record in document["records"]:
        lines.append("| " + " | ".join(show(record) for show in columns.values()) + " |")
    versions = ", ".join(f"{name} {version}" for name, version in document["machine"]["versions"].items())
    text = caption(document)
    return "\n".join([*lines, "", f"{text[0].upper()}{text[1:]}", "", f"Versions: {versions}.", ""])
