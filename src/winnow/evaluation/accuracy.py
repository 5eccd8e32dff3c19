"""From records to scores: per task and length with a confidence interval, and by the depth of the needle."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from winnow.evaluation.evaluate import Record

Z95 = 1.959964  # normal quantile of a two-sided 95 % interval


@dataclass(frozen=True)
class DepthScore:
    """Share of the needles near `depth` that were found, of `needles`."""

    depth: float
    found: float
    needles: int


@dataclass(frozen=True)
class Accuracy:
    """The mean score of one plan on one task at one length, of `examples`, with its 95 % interval `low` .. `high`.

    loop_rate: share of the answers that repeat themselves up to their length limit.
    """

    plan: str
    task: str
    length: int
    examples: int
    score: float
    low: float
    high: float
    loop_rate: float
    by_depth: tuple[DepthScore, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def accuracies(records: Sequence[Record], depths: Sequence[float]) -> list[Accuracy]:
    """One Accuracy per length, task and plan, each in the order they first come up.

    Each needle counts at the one of `depths` nearest to where it stood, also in tasks that spread several needles and
    take no depth.
    """
    lengths, tasks, plans = ({getattr(r, name): None for r in records} for name in ("length", "task", "plan"))
    groups: dict[tuple[int, str, str], list[Record]] = {key: [] for key in itertools.product(lengths, tasks, plans)}
    for record in records:
        groups[record.length, record.task, record.plan].append(record)
    return [_accuracy(group, depths) for group in groups.values() if group]


def wilson(share: float, trials: int, z: float = Z95) -> tuple[float, float]:
    """The Wilson score interval of a share of `trials`; trials may score between 0 and 1, then it is approximate."""
    if trials < 1 or not 0 <= share <= 1:
        raise ValueError(f"share={share} must be between 0 and 1, of at least 1 trial, not {trials}")
    middle = share + z * z / (2 * trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    # At shares of 0 and 1 the interval ends there; rounding must not put the end a hair inside.
    return max(0.0, min(share, (middle - half) / scale)), min(1.0, max(share, (middle + half) / scale))


def _accuracy(group: Sequence[Record], depths: Sequence[float]) -> Accuracy:
    scores = [record.score for record in group if record.score is not None]
    score = sum(scores) / len(scores)
    low, high = wilson(score, len(scores))
    bins: dict[float, list[bool]] = {depth: [] for depth in sorted(depths)}
    for record in group:
        # Some tasks ask for what stands everywhere in a text.
        for place, hit in zip(record.depths, record.found, strict=True) if record.depths else ():
            bins[min(bins, key=lambda depth: abs(depth - place))].append(hit)
    by_depth = tuple(DepthScore(depth, sum(hits) / len(hits), len(hits)) for depth, hits in bins.items() if hits)
    loop_rate = sum(record.loops for record in group) / len(group)
    first = group[0]
    return Accuracy(first.plan, first.task, first.length, len(scores), score, low, high, loop_rate, by_depth)
