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


def held(record: Record, full: Record, name: str) -> float:
    """Bytes over all examples that both have, in percent of full attention's: answers differ in length by little."""
    base = {row["index"]: row[name] for row in full["rows"]}
    both = [row for row in record["rows"] if row["index"] in base]
    return 100 * sum(row[name] for row in both) / sum(base[row["index"]] for row in both)
