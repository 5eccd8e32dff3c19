"""What blocks of figures are made with: a block, Markdown tables, and how figures are written."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]
Column = Callable[[Record], str]
Columns = Mapping[str, Column]
MIB = 2**20
FIGURE = re.compile(r"[-+]?\d|-?$")  # how a cell with a figure begins; an empty one and a dash have none
# What a record counts of memory, the best first: older ones have the peaks of its two parts.
MEMORY = {
    "total_bytes": ("memory", "units and all that a plan holds beside them, at their peak"),
    "aux_bytes": (
        "memory, at most",
        "the peak of units and the peak of all that a plan holds beside them, added; the two need not fall together",
    ),
}


@dataclass(frozen=True)
class Block:
    """Figures of a page: `make` gets the documents of `files`, which lie in docs/results, and returns Markdown."""

    make: Callable[..., str]
    files: tuple[str, ...]


def table(columns: Columns, records: Iterable[Record]) -> str:
    """A row per record, a column per heading; columns of figures are aligned to the right."""
    rows = [[show(record) for show in columns.values()] for record in records]
    right = [all(FIGURE.match(row[place]) for row in rows) for place in range(len(columns))]
    lines = [list(columns), ["---:" if each else "---" for each in right], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def most(value: float, digits: int) -> str:
    """What a figure is at most: rounded up."""
    return f"{math.ceil(round(value * 10**digits, 6)) / 10**digits:.{digits}f}"


def key(name: str) -> Column:
    """A field as it is."""
    return lambda record: str(record[name])


def code(name: str) -> Column:
    """A field, such as a plan, in the type of code."""
    return lambda record: f"`{record[name]}`"


def count(name: str) -> Column:
    """A whole number, with commas."""
    return lambda record: f"{record[name]:,.0f}"


def number(name: str, digits: int) -> Column:
    """A figure as it is, empty where there is none."""
    return lambda record: "" if record[name] is None else f"{record[name]:.{digits}f}"


def percent(name: str, digits: int = 1) -> Column:
    """A share, in percent; empty where there is none."""
    return lambda record: "" if record[name] is None else f"{100 * record[name]:.{digits}f}"


def milliseconds(name: str, digits: int = 1) -> Column:
    return lambda record: f"{1000 * record[name]:.{digits}f}"


def mib(name: str, digits: int = 2) -> Column:
    return lambda record: f"{record[name] / MIB:,.{digits}f}"


def interval(record: Record) -> str:
    """The 95 % interval of a score, in percent."""
    return f"{100 * record['low']:.0f} to {100 * record['high']:.0f}"


def scored(record: Record) -> str:
    """A score with its interval: `95.0 (89 to 98)`."""
    return f"{100 * record['score']:.1f} ({interval(record)})"


def ranged(interval: Record, digits: int, scale: float = 1.0, sign: str = "") -> str:
    """A mean with its 95 % interval: `0.0123 (0.0110 to 0.0135)`. sign: "+" where it is always written."""
    mean, low, high = (f"{scale * interval[name]:{sign}.{digits}f}" for name in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def span(values: Iterable[float], shown: str) -> str:
    """From the least to the largest: `0.82 to 1.04`, or one of them where they are shown alike. shown: the format."""
    found = sorted(values)
    ends = f"{found[0]:{shown}}", f"{found[-1]:{shown}}"
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def of_memory(record: Record) -> str:
    """The name of the field, of those in MEMORY, that says what a record's plan has held."""
    return next(name for name in MEMORY if name in record)


def versions(document: Record) -> str:
    """What it was measured with: `winnow 0.1.0, torch 2.13.0`."""
    return ", ".join(f"{name} {version}" for name, version in document["versions"].items())


def machine(document: Record) -> str:
    """What it was measured on, and the code that made it."""
    machine = document["machine"]
    threads = "one thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    vectors = f" ({machine['vectors']})" if "vectors" in machine else ""
    return f"{threads} of an {machine['device']}{vectors}, commit {document.get('commit')}"


def one(records: Iterable[Record], **fields: object) -> Record:
    """The one record with these fields; raises ValueError where there is none, or more."""
    [found] = [each for each in records if all(each[name] == value for name, value in fields.items())]
    return found
