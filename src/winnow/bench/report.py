"""The records of a run as a table, as Markdown, and as a picture."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from winnow.bench.speed import STOCK
from winnow.errors import MissingExtraError

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
    view = Table(title=f"{document['shape']}: {document['what']}", caption=caption(document))
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
    lines = [f"# {document['shape']}: {document['what']}", "", "```", document["command"], "```", ""]
    columns = columns_of(document)
    lines += ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for record in document["records"]:
        lines.append("| " + " | ".join(show(record) for show in columns.values()) + " |")
    versions = ", ".join(f"{name} {version}" for name, version in document["machine"]["versions"].items())
    text = caption(document)
    return "\n".join([*lines, "", f"{text[0].upper()}{text[1:]}", "", f"Versions: {versions}.", ""])


def plot(documents: Sequence[Record], path: Path) -> None:
    """Seconds over tokens, a panel per document; raises MissingExtraError without matplotlib."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import NullFormatter, ScalarFormatter
    except ImportError as error:
        raise MissingExtraError("plots need matplotlib: pip install 'winnow-llm[bench]'") from error
    figure = Figure(figsize=(5 * len(documents), 4), layout="constrained")
    for axis, document in zip(figure.subplots(1, len(documents), squeeze=False)[0], documents, strict=True):
        for arm in dict.fromkeys(record["arm"] for record in document["records"]):
            records = [record for record in document["records"] if record["arm"] == arm]
            lengths = [record["length"] for record in records]
            spread = [record["spread_s"] for record in records]
            label = arm if arm == STOCK else f"Winnow, {arm}"
            axis.errorbar(lengths, [r["median_s"] for r in records], spread, marker="o", capsize=3, label=label)
            if arm == STOCK:
                axis.plot(lengths, [r["floor_s"] for r in records], "k:", label="floor of this machine")
        axis.set(xscale="log", yscale="log", xlabel="tokens", ylabel="seconds", xticks=lengths)
        axis.xaxis.set(major_formatter=ScalarFormatter(), minor_formatter=NullFormatter())
        axis.yaxis.set(major_formatter="{x:g}", minor_formatter=NullFormatter())
        axis.set_title(f"{document['shape']}, {document['what']}")
        axis.legend()
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
