"""What an arm has cost, next to full attention on the same examples."""

from __future__ import annotations

from collections.abc import Callable

from recipes.reporting import Record
from recipes.slowfast.figures import share


def costs(record: Record, full: Record) -> dict[str, float]:
    """Rows computed, the most bytes held, of all, and units read, in percent of full attention's."""
    return {
        "rows": share([record], "rows_computed", ("rows_full",)),
        "bytes": held(record, full, most_bytes),
        "units": share([record], "units_read", ("units_full",)),
    }


def most_bytes(row: Record) -> float:
    """The most bytes held at once, of all. Of an older row, which has the peaks of units and of the rest: their sum,
    which is never less."""
    return float(row["total_bytes"] if "total_bytes" in row else row["peak_cache_bytes"] + row["aux_bytes"])


def held(record: Record, full: Record, count: Callable[[Record], float]) -> float:
    """Bytes over all examples that both have, in percent of full attention's: answers differ in length by little."""
    base = {row["index"]: count(row) for row in full["rows"]}
    both = [row for row in record["rows"] if row["index"] in base]
    return 100 * sum(map(count, both)) / sum(base[row["index"]] for row in both)
