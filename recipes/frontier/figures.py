"""What an arm has cost, next to full attention on the same examples."""

from __future__ import annotations

from recipes.reporting import Record
from recipes.slowfast.figures import share


def costs(record: Record, full: Record) -> dict[str, float]:
    """Rows computed, the most bytes held, of all, and units read, in percent of full attention's."""
    return {
        "rows": share([record], "rows_computed", ("rows_full",)),
        "bytes": held(record, full, "total_bytes"),
        "units": share([record], "units_read", ("units_full",)),
    }


UNITS = ("cache_bytes",)
ALL = ("cache_bytes", "aux_bytes")  # units at the end, and the most that is held beside them


def held(record: Record, full: Record, *names: str) -> float:
    """Bytes over all examples that both have, in percent of full attention's: answers differ in length by little.

    names: fields that are added up.
    """
    base = {row["index"]: _sum(row, names) for row in full["rows"]}
    both = [row for row in record["rows"] if row["index"] in base]
    return 100 * sum(_sum(row, names) for row in both) / sum(base[row["index"]] for row in both)


def _sum(row: Record, names: tuple[str, ...]) -> int:
    return sum(row[name] for name in names)
