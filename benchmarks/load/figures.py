"""Percentiles, as those who run servers give them."""

import math
from collections.abc import Sequence

SHARES = (0.5, 0.9, 0.99)


def percentile(values: Sequence[float], share: float) -> float:
    """The least of the values that so large a share of them does not exceed; not a number where there are none."""
    return sorted(values)[max(1, math.ceil(share * len(values))) - 1] if values else math.nan


def percentiles(values: Sequence[float]) -> tuple[float, ...] | None:
    """p50, p90 and p99; None where there are none."""
    return tuple(percentile(values, share) for share in SHARES) if values else None
