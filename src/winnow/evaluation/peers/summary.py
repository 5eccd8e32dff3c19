"""A row per arm: what its answers cost and were worth, against full attention's and the first peer's."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from winnow.evaluation.compare import Scored, distinct, mean_scores, timing
from winnow.evaluation.peers.compare import Answer

FULL = "full"


@dataclass(frozen=True)
class PeerRow(Scored):
    """One arm at one length.

    tokens_per_s: new tokens over the whole time of their answers. cache_bytes, kept_units, peak_bytes: the most of any
    example. same_tokens: the share of answers that are full attention's to the token. ratios: of the figures of the arm
    named, over the examples that both have answered.
    """

    arm: str
    tokens_per_s: float
    cache_bytes: int
    kept_units: int | None
    peak_bytes: int | None
    same_tokens: float | None
    ratios: dict[str, dict[str, float]]

    @property
    def figures(self) -> dict[str, float]:
        """What arms are ranked by, by the names in `ratios`."""
        found = {"ttft": self.ttft_s.median, "tokens_per_s": self.tokens_per_s, "cache": float(self.cache_bytes)}
        if self.tpot_s is not None:
            found["tpot"] = self.tpot_s.median
        if self.peak_bytes is not None:
            found["peak"] = float(self.peak_bytes)
        return found


def summarise_peers(answers: Sequence[Answer], arms: Sequence[str], beside: Sequence[str]) -> list[PeerRow]:
    """A row per length and arm that has answered anything, in the order of `arms`; ratios to the arms in `beside`."""
    rows = []
    for length in distinct(answers, lambda answer: answer.length):
        groups = {arm: [a for a in answers if (a.arm, a.length) == (arm, length)] for arm in arms}
        for arm, group in groups.items():
            if group:
                rows.append(_row(group, {other: groups[other] for other in beside if groups[other] and other != arm}))
    return rows


@dataclass(frozen=True)
class Best:
    """The best of several arms in one figure: whose it is, and what it is."""

    arm: str
    value: float


def best_of(rows: Sequence[PeerRow], family: str) -> dict[str, Best]:
    """Of the arms of a family, at one length: the best in each figure, as in `PeerRow.ratios`; more tokens are better.

    Winnow is compared with these: a peer's formats are each best at something else.
    """
    own = [row for row in rows if row.arm.partition(":")[0] == family]
    figures: dict[str, dict[str, float]] = {}
    for row in own:
        for name, value in row.figures.items():
            figures.setdefault(name, {})[row.arm] = value
    return {name: best(values, most=name == "tokens_per_s") for name, values in figures.items()}


def best(values: Mapping[str, float], *, most: bool = False) -> Best:
    """values: by arm; the least is best, unless `most`."""
    arm = (max if most else min)(values, key=values.__getitem__)
    return Best(arm, values[arm])


def _row(group: Sequence[Answer], others: dict[str, list[Answer]]) -> PeerRow:
    scores = mean_scores((answer.task, answer.score) for answer in group)
    peaks = [answer.peak_bytes for answer in group if answer.peak_bytes is not None]
    units = [answer.kept_units for answer in group if answer.kept_units is not None]
    times = [answer.tpot_s for answer in group if answer.tpot_s is not None]
    full = {_case(answer): answer.token_ids for answer in others.get(FULL, ())}
    same = [answer.token_ids == full[_case(answer)] for answer in group if _case(answer) in full]
    return PeerRow(
        arm=group[0].arm,
        length=group[0].length,
        examples=len(group),
        scores=scores,
        score=statistics.fmean(scores.values()) if scores else None,
        ttft_s=timing([answer.ttft_s for answer in group]),
        tpot_s=timing(times) if times else None,
        tokens_per_s=sum(len(answer.token_ids) for answer in group) / sum(answer.total_s for answer in group),
        cache_bytes=max(answer.cache_bytes for answer in group),
        kept_units=max(units) if units else None,
        peak_bytes=max(peaks) if peaks else None,
        same_tokens=statistics.fmean(same) if same else None,
        ratios={name: _ratios(group, other) for name, other in others.items()},
    )


def _ratios(group: Sequence[Answer], other: Sequence[Answer]) -> dict[str, float]:
    common = {_case(answer) for answer in group} & {_case(answer) for answer in other}
    mine, its = ([answer for answer in side if _case(answer) in common] for side in (group, other))
    if not common:
        return {}
    base = _row(its, {}).figures
    return {name: figure / base[name] for name, figure in _row(mine, {}).figures.items() if base.get(name)}


def _case(answer: Answer) -> tuple[str, int, float | None, int]:
    return answer.task, answer.length, answer.depth, answer.index
