"""Figures of docs/results/trained.md: how SmolLM2's parts were trained."""

from __future__ import annotations

from .quality import final
from .tables import MIB, Block, Columns, Record, count, key, table

COLUMNS: Columns = {
    "part": lambda record: f"`{record['part']}`",
    "steps": count("steps"),
    "tokens": count("tokens"),
    "time, s": count("seconds"),
    "memory, MiB": lambda record: f"{record['peak_bytes'] / MIB:,.0f}",
    "held out, before": key("before"),
    "held out, after": key("after"),
}
FIGURES = ("loss", "overlap", "distance")  # of what is held out; a KL is from the model before, and grows


def markdown(records: list[Record]) -> str:
    """A row per part: what its training took, and what it makes of texts that it did not learn from."""
    rows = [{**record["result"], "part": record["part"], **_held_out(record)} for record in records]
    return table(COLUMNS, rows) + "\n"


def _held_out(record: Record) -> Record:
    told = [line["held_out"] for line in record["log"] if "held_out" in line and line["step"] == 0]
    return {"before": _figures(told[0]) if told else "", "after": _figures(record["result"]["held_out"])}


def _figures(held_out: Record) -> str:
    return ", ".join(f"{name} {held_out[name]:.3f}" for name in FIGURES if name in held_out)


BLOCKS = {
    "smollm2-training": Block(markdown, ("smollm2-training.json",)),
    "quality-trained-speed": Block(final, ("quality-trained-speed.json",)),
}
