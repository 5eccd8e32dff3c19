"""A cutoff: how many of the first layers compute the prompt, as a count or as a share of the layers."""

import math

from winnow.policies.base import ModelShape


def cutoff_problem(cutoff: int | float) -> str | None:
    """What is wrong with a cutoff for any model, or None."""
    if isinstance(cutoff, int) and cutoff < 1:
        return f"cutoff={cutoff}: the prompt needs at least one layer; use a count from 1 on, or a share such as 0.75"
    if isinstance(cutoff, float) and not 0 < cutoff <= 1:
        return f"cutoff={cutoff} must be a count of layers, or a share above 0.0 and up to 1.0"
    return None


def cut(cutoff: int | float, shape: ModelShape) -> int:
    """The count of layers: a share is rounded half up, to one layer at least."""
    return cutoff if isinstance(cutoff, int) else max(1, math.floor(cutoff * shape.layers + 0.5))
