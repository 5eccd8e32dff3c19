"""From measurements to figures: mean scores, shares of costs, and differences on the same examples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from recipes.reporting import Record

RESAMPLES = 2000


@dataclass(frozen=True)
class Difference:
    """Mean score less that of full attention on the same examples, with its 95 % interval `low` .. `high`; points."""

    points: float
    low: float
    high: float


def difference(record: Record, full: Record) -> Difference:
    """Paired by example, over those that both have; the interval is that of a bootstrap over the examples."""
    base = {row["index"]: row["score"] for row in full["rows"]}
    pairs = [row["score"] - base[row["index"]] for row in record["rows"] if row["index"] in base]
    gained = 100 * np.array(pairs)
    drawn = np.random.default_rng(0).integers(len(gained), size=(RESAMPLES, len(gained)))
    low, high = np.quantile(gained[drawn].mean(1), (0.025, 0.975))
    return Difference(float(gained.mean()), float(low), float(high))


def score(record: Record) -> float:
    """The mean over the examples, 0 .. 100."""
    return 100 * sum(row["score"] for row in record["rows"]) / len(record["rows"])


def share(records: list[Record], count: str, of: tuple[str, ...]) -> float:
    """A sum over all examples over another one, in percent."""
    rows = [row for record in records for row in record["rows"]]
    return 100 * sum(row[count] for row in rows) / sum(row[name] for row in rows for name in of)
