"""From records to figures: every arm beside full attention on the same questions and windows, with 95 % intervals."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.fidelity_by_domain import Interval, bootstrap
from benchmarks.quality.arms import FULL
from benchmarks.quality.records import Record
from winnow.errors import InputError
from winnow.evaluation.accuracy import Z95

Places = dict[tuple[object, ...], Record]  # by which question or window it is; see `place`
ALL = "all"  # tasks, or domains
ASKED = {"answer": ("question", "answers"), "window": ("text",)}  # what is the same for all arms
ENOUGH = 100  # different questions behind a figure that a sentence may rest on
COSTS = {  # of full attention's: what is counted of an arm, and what of full attention that is told from its own record
    "rows": ("rows_computed", "rows_full"),
    "units": ("units_read", "units_full"),
    "pairs": ("pairs_read", "pairs_full"),
}
# Of full attention's on the same text; "after" is None where records are older than its count.
BYTES = {"bytes": "total_bytes", "held": "cache_bytes", "after": "held_bytes"}


@dataclass(frozen=True)
class ScoreRow:
    """An arm on a task (or `ALL`) at a length.

    questions: how many were answered; different: how many of them ask different things, which the interval rests on.
    score: 0 .. 1; full: full attention's, or that of the arm that all are compared with; difference: from it, in pairs.
    adapter: what the model had besides. costs: shares of full attention's, None where there is nothing to count.
    """

    arm: str
    plan: str
    task: str
    length: int
    questions: int
    different: int
    score: float
    full: float
    difference: Interval
    adapter: str | None
    costs: dict[str, float | None]

    @property
    def few(self) -> bool:
        """Whether no sentence may rest on it."""
        return self.different < ENOUGH

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "few": self.few}


@dataclass(frozen=True)
class WindowRow:
    """An arm on the windows of a domain (or `ALL`) at a length.

    kl: nats, full attention's distribution of the next token to the arm's; difference: from that of the arm that all
    are compared with, window by window (of full attention, 0). top1: how often both find the same token likeliest.
    perplexity, perplexity_full: of the text under the arm and under full attention; ratio: of the two; ratio_against:
    over that under the arm that all are compared with. adapter: what the model had besides.
    """

    arm: str
    plan: str
    domain: str
    length: int
    windows: int
    kl: Interval
    difference: Interval
    top1: Interval
    perplexity: float
    perplexity_full: float
    ratio: Interval
    ratio_against: Interval
    adapter: str | None
    costs: dict[str, float | None]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def score_rows(records: Sequence[Record], against: str = FULL) -> list[ScoreRow]:
    """A row per length, task and arm, and one per arm over all tasks; of questions that full attention and the arm
    `against`, with whose scores all are compared, have answered."""
    groups, other = _pairs(records, "answer", against)
    rows: list[ScoreRow] = []
    for pairs in groups:
        tasks = [[pair for pair in pairs if pair[0]["task"] == task] for task in _values(pairs, "task")]
        spreads = [_differences(cell, other) for cell in tasks]
        cells = [_score_row(*each, other) for each in zip(tasks, spreads, strict=True)]
        rows += [*cells, _over_tasks(cells, spreads, pairs)] if len(cells) > 1 else cells
    return rows


def window_rows(records: Sequence[Record], against: str = FULL) -> list[WindowRow]:
    """A row per length, domain and arm, and one per arm over all domains; of windows that full attention and the arm
    `against`, with whose KL all are compared, have followed."""
    groups, other = _pairs(records, "window", against)
    rows: list[WindowRow] = []
    for pairs in groups:
        domains = _values(pairs, "domain")
        parts = {domain: [pair for pair in pairs if pair[0]["domain"] == domain] for domain in domains}
        parts |= {ALL: pairs} if len(domains) > 1 else {}
        rows += [_window_row(domain, part, other) for domain, part in parts.items()]
    return rows


def paired_interval(*tasks: Sequence[float]) -> Interval:
    """The mean over tasks, of the same weight, of the mean of differences of scores in each, and its 95 % interval.

    A question that is won and one that is lost are added, shared out evenly among the tasks, and the interval is the
    normal one around the mean of these: of scores of 0 and 1 and one task that of Bonett and Price, Journal of
    Educational and Behavioral Statistics 37 (2012), which also holds where hardly any pair differs; the share is theirs
    for means of proportions (British Journal of Mathematical and Statistical Psychology 57, 2004). Differences are -1
    .. 1; where scores differ by less the interval is wide.
    """
    added = 1 / len(tasks)
    middles, variances = [], []
    for differences in tasks:
        count = len(differences) + 2 * added
        middles.append(math.fsum(differences) / count)
        squares = (math.fsum(each * each for each in differences) + 2 * added) / count
        variances.append((squares - middles[-1] ** 2) / count)
    middle, half = statistics.fmean(middles), Z95 * math.sqrt(math.fsum(variances)) / len(tasks)
    mean = statistics.fmean(statistics.fmean(each) for each in tasks)
    return Interval(mean, max(-1.0, middle - half), min(1.0, middle + half))


def costs_of(pairs: Sequence[tuple[Record, Record]]) -> dict[str, float | None]:
    """What an arm has taken, of full attention's, over all questions or windows. pairs: its record, and full's."""

    def total(name: str, who: int) -> int | None:
        counts = [pair[who]["costs"].get(name) for pair in pairs]
        return None if None in counts else sum(counts)

    shares = {cost: (total(mine, 0), total(whole, 0)) for cost, (mine, whole) in COSTS.items()}
    shares |= {cost: (total(name, 0), total(name, 1)) for cost, name in BYTES.items()}
    return {cost: mine / whole if whole and mine is not None else None for cost, (mine, whole) in shares.items()}


def _pairs(records: Sequence[Record], kind: str, against: str) -> tuple[list[list[tuple[Record, Record]]], Places]:
    """Of each arm at each length its records of a kind, each with full attention's, and those of the arm `against` by
    their places; of what both of these have."""
    mine = [record for record in records if record["kind"] == kind]
    full, other = ({place(record): record for record in mine if record["arm"] == arm} for arm in (FULL, against))
    for each in mine:
        if (same := full.get(place(each))) and any(each[name] != same[name] for name in ASKED[kind]):
            where = " ".join(str(part) for part in place(each) if part is not None)
            raise InputError(
                f"{each['arm']} and full were asked different things at {where}; only records of one --data go together"
            )
    groups = _groups((each for each in mine if place(each) in full and place(each) in other), ("length", "arm", "plan"))
    return [[(each, full[place(each)]) for each in group] for group in groups], other


def _differences(pairs: Sequence[tuple[Record, Record]], others: Places) -> list[float]:
    """Of each different question the arm's score less the other's; one that is asked again, among other texts, is no
    new evidence: it counts once, with its mean."""
    asked: dict[tuple[str, ...], list[float]] = {}
    for mine, _ in pairs:
        asked.setdefault((mine["question"], *mine["answers"]), []).append(mine["score"] - others[place(mine)]["score"])
    return [statistics.fmean(each) for each in asked.values()]


def _score_row(pairs: Sequence[tuple[Record, Record]], differences: Sequence[float], others: Places) -> ScoreRow:
    """pairs: an arm's records of a task and full attention's; differences: from `others`, those to compare with."""
    first = pairs[0][0]
    return ScoreRow(
        arm=first["arm"],
        plan=first["plan"],
        task=first["task"],
        length=first["length"],
        questions=len(pairs),
        different=len(differences),
        score=statistics.fmean(mine["score"] for mine, _ in pairs),
        full=statistics.fmean(others[place(mine)]["score"] for mine, _ in pairs),
        difference=paired_interval(differences),
        adapter=first.get("adapter"),
        costs=costs_of(pairs),
    )


def _over_tasks(
    cells: Sequence[ScoreRow], differences: Sequence[Sequence[float]], pairs: Sequence[tuple[Record, Record]]
) -> ScoreRow:
    """The mean over tasks, each with the same weight; `different` is that of all tasks together."""
    return replace(
        cells[0],
        task=ALL,
        questions=len(pairs),
        different=sum(cell.different for cell in cells),
        score=statistics.fmean(cell.score for cell in cells),
        full=statistics.fmean(cell.full for cell in cells),
        difference=paired_interval(*differences),
        costs=costs_of(pairs),
    )


def _window_row(domain: str, pairs: Sequence[tuple[Record, Record]], others: Places) -> WindowRow:
    """pairs: an arm's records and full attention's; others: those to compare with, by their windows."""
    mine = [pair[0] for pair in pairs]
    return WindowRow(
        arm=mine[0]["arm"],
        plan=mine[0]["plan"],
        domain=domain,
        length=mine[0]["length"],
        windows=len(mine),
        kl=bootstrap([each["kl"] for each in mine]),
        difference=bootstrap([each["kl"] - others[place(each)]["kl"] for each in mine]),
        top1=bootstrap([each["top1"] for each in mine]),
        perplexity=math.exp(statistics.fmean(each["nll_plan"] for each in mine)),
        perplexity_full=math.exp(statistics.fmean(each["nll_full"] for each in mine)),
        ratio=_ratio([each["nll_plan"] - each["nll_full"] for each in mine]),
        ratio_against=_ratio([each["nll_plan"] - others[place(each)]["nll_plan"] for each in mine]),
        adapter=mine[0].get("adapter"),
        costs=costs_of(pairs),
    )


def _ratio(losses: Sequence[float]) -> Interval:
    """Of two perplexities, from the difference of their logarithms in every window."""
    loss = bootstrap(losses)
    return Interval(*map(math.exp, (loss.mean, loss.low, loss.high)))


def place(record: Record) -> tuple[object, ...]:
    """Which question or window, whoever answered or followed it."""
    return record.get("task"), record.get("domain"), record["length"], record["index"]


def _groups(records: Iterable[Record], names: Sequence[str]) -> list[list[Record]]:
    """Records that agree in what is named; full attention's first, else as they come."""
    found: dict[tuple[object, ...], list[Record]] = {}
    for record in records:
        found.setdefault(tuple(record[name] for name in names), []).append(record)
    return sorted(found.values(), key=lambda group: (group[0]["length"], group[0]["arm"] != FULL))


def _values(pairs: Sequence[tuple[Record, Record]], name: str) -> list[str]:
    return list(dict.fromkeys(str(pair[0][name]) for pair in pairs))
