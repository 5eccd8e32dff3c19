"""Tables: their columns are declared once, for the eye and for pictures, and below stands what their words mean."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rich.table import Table

from winnow.cli.terminal import new_table
from winnow.cli.words import explained

MIB = 2**20
NAMES = 17  # least width of a column of texts, where they are that long
Row = TypeVar("Row", contravariant=True)


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A figure of every row.

    heading: its name and, last, its unit, broken into lines. value: a number, a text, or None where there is none.
    spec: how a number is written, as `format` takes it. ratio: by which name a row knows what it is of another's.
    """

    heading: str
    value: Callable[[Row], Any]
    spec: str = ""
    ratio: str = ""

    def shown(self, row: Row) -> str:
        value = self.value(row)
        return "-" if value is None else format(value, self.spec)

    def of(self, part: Callable[[Any], Row | None]) -> "Column[Any]":
        """The same of a part of a row, which it may lack."""

        def value(row: Any) -> Any:
            return None if (found := part(row)) is None else self.value(found)

        return Column(self.heading, value, self.spec, self.ratio)

    @property
    def label(self) -> str:
        """At an axis: "TTFT, s"."""
        name, _, unit = self.heading.rpartition("\n")
        return f"{' '.join(name.split())}, {unit}" if name else unit

    def said(self, row: Row) -> str:
        """In a sentence: "TTFT 0.500 s"."""
        name, _, unit = self.heading.rpartition("\n")
        return f"{name} {self.shown(row)} {unit}".lstrip()


def table_of(
    rows: Collection[Row],
    names: Mapping[str, Callable[[Row], str]],
    columns: Sequence[Column[Row]] = (),
    *,
    title: str | None = None,
    note: str = "",
    ratios: Callable[[Row], Mapping[str, float]] | None = None,
) -> Table:
    """A line per row: texts by heading on the left, then figures.

    note: what the words in the headings do not say. ratios: of a row, by `Column.ratio`; shown below the figure.
    """
    headings = [*names, *(column.heading for column in columns)]
    table = new_table(title, explained(headings + ["x"] * (ratios is not None), note))
    for heading, name in names.items():
        longest = max((len(name(row)) for row in rows), default=0)
        table.add_column(heading, overflow="fold", min_width=min(NAMES, longest))
    for column in columns:
        table.add_column(column.heading, justify="right", overflow="fold")
    for row in rows:
        known = ratios(row) if ratios else {}
        cells = [
            f"{column.shown(row)}\n{known[column.ratio]:.2f}x" if column.ratio in known else column.shown(row)
            for column in columns
        ]
        table.add_row(*(name(row) for name in names.values()), *cells)
    return table


def facts(title: str, values: Mapping[str, str], head: str = "fact", right: str = "value") -> Table:
    """A line per fact, and what the words in them mean."""
    table = new_table(title, explained([*values, *values.values()]))
    table.add_column(head)
    table.add_column(right, overflow="fold", justify="left" if right else "right")
    for name, value in values.items():
        table.add_row(name, value)
    return table


def percent(share: float | None) -> float | None:
    """100 * share."""
    return None if share is None else 100 * share
