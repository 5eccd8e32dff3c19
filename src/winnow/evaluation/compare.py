"""Plans side by side, full attention first: what each one costs, and what it does to the answers."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from winnow.evaluation.evaluate import Case, Progress, Record, answer, silent
from winnow.plan import Plan
from winnow.runtime.llm import LLM
from winnow.tasks import Example

Key = TypeVar("Key")
Some = TypeVar("Some")
DOCUMENT = "document"  # what stands for the task where the user brought the text


@dataclass(frozen=True)
class Timing:
    """A median and the interquartile range around it, in seconds."""

    median: float
    iqr: float


@dataclass(frozen=True)
class Scored:
    """Answers to `examples` examples of a length. scores: mean per task, 0 .. 1; score: the mean of those, None where
    no answer is known; tpot_s: None where no answer has two tokens."""

    length: int
    examples: int
    scores: dict[str, float]
    score: float | None
    ttft_s: Timing
    tpot_s: Timing | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Row(Scored):
    """One plan at one length, over examples of every task.

    total_bytes: the most of any example. rows_share, units_share: rows computed and units read, of what full attention
    takes for the same tokens. None where there is nothing to average. ratios: ttft, tpot and total, of the figures of
    full attention.
    """

    plan: str
    total_bytes: int
    rows_share: float
    units_share: float | None
    ratios: dict[str, float]


def compare_document(
    llm: LLM,
    plans: Sequence[str | Plan],
    ids: Sequence[int],
    question: str,
    max_tokens: int,
    *,
    seed: int = 0,
    progress: Progress = silent,
) -> Iterator[Record]:
    """Continue one prompt of the user's own under full attention and `plans`; the records have no score.

    Raises InputError, CapacityError or PlanError before any work is done.
    """
    case = document_case(ids, question, max_tokens)
    chosen = with_full(plans)
    for plan in chosen:
        llm.check([case.ids], case.params, plan=plan)
    return answer(llm, chosen, iter([case]), seed, progress)


def document_case(ids: Sequence[int], question: str, max_tokens: int) -> Case:
    """A prompt of the user's own, whose answer is not known."""
    example = Example(context="", question=question, reply="", answers=(), depths=(), max_tokens=max_tokens)
    return Case(DOCUMENT, len(ids), 0, None, example, list(ids), None)


def with_full(plans: Sequence[str | Plan]) -> list[Plan]:
    """Full attention, then the other plans, each once."""
    chosen = [Plan()]
    for plan in map(Plan.parse, plans):
        if plan not in chosen:
            chosen.append(plan)
    return chosen


def finished(records: Sequence[Record], plans: int) -> list[Record]:
    """The records of the examples that all of the `plans` have answered, so that every plan is judged on the same."""
    answered: dict[tuple[str, int, float | None, int], int] = {}
    for record in records:
        answered[_case(record)] = answered.get(_case(record), 0) + 1
    return [record for record in records if answered[_case(record)] == plans]


def summarise(records: Sequence[Record]) -> list[Row]:
    """A Row per length and plan, full attention first; `records` must hold full attention's for every length."""
    rows = []
    for length in distinct(records, lambda record: record.length):
        group = [record for record in records if record.length == length]
        full = [record for record in group if record.plan == "full"]
        plans = distinct(group, lambda record: record.plan)
        for plan in sorted(plans, key=lambda plan: plan != "full"):
            rows.append(_row([record for record in group if record.plan == plan], full))
    return rows


def verdict(row: Row, full: Row) -> str:
    """One line: what `row`'s plan saves and what it costs, against full attention on the same examples."""
    parts = [f"memory {row.ratios['total']:.2f}x"]
    if row.units_share is not None:
        parts.append(f"reads {row.units_share:.2f}x")
    parts.append(f"computes {row.rows_share:.2f}x")
    parts += [f"{name.upper()} {row.ratios[name]:.2f}x" for name in ("ttft", "tpot") if name in row.ratios]
    if row.score is not None and full.score is not None:
        points = round(100 * (row.score - full.score))
        distance = f"{abs(points)} point{'s' * (abs(points) > 1)} {'higher' if points > 0 else 'lower'}"
        means = f"{100 * row.score:.0f} against {100 * full.score:.0f} %, {row.examples} examples"
        parts.append(f"score {distance if points else 'the same'} ({means})")
    return f"{row.plan}: {', '.join(parts)}"


def _row(group: Sequence[Record], full: Sequence[Record]) -> Row:
    scores = mean_scores((record.task, record.score) for record in group)
    stats = [record.stats for record in group]
    ttft, tpot = _ttft(group), _tpot(group)
    most = max(each.total_bytes for each in stats)
    ratios = {
        "ttft": ttft.median / _ttft(full).median,
        "total": most / max(record.stats.total_bytes for record in full),
    }
    if tpot is not None and (base := _tpot(full)) is not None:
        ratios["tpot"] = tpot.median / base.median
    units_full = sum(each.units_full for each in stats)
    return Row(
        plan=group[0].plan,
        length=group[0].length,
        examples=len(group),
        scores=scores,
        score=statistics.fmean(scores.values()) if scores else None,
        ttft_s=ttft,
        tpot_s=tpot,
        total_bytes=most,
        rows_share=sum(each.rows_computed for each in stats) / sum(each.rows_full for each in stats),
        units_share=sum(each.units_read for each in stats) / units_full if units_full else None,
        ratios=ratios,
    )


def _ttft(group: Sequence[Record]) -> Timing:
    return timing([record.stats.ttft_s for record in group])


def _tpot(group: Sequence[Record]) -> Timing | None:
    """Over the answers of more than one token; None if there is none."""
    times = [record.stats.tpot_s for record in group if record.stats.new_tokens > 1]
    return timing(times) if times else None


def timing(times: Sequence[float]) -> Timing:
    """Of at least one time."""
    if len(times) == 1:
        return Timing(times[0], 0.0)
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return Timing(middle, high - low)


def mean_scores(scores: Iterable[tuple[str, float | None]]) -> dict[str, float]:
    """Of (task, score): the mean of each task, of those that have known answers."""
    by_task: dict[str, list[float]] = {}
    for task, score in scores:
        if score is not None:
            by_task.setdefault(task, []).append(score)
    return {task: statistics.fmean(values) for task, values in by_task.items()}


def _case(record: Record) -> tuple[str, int, float | None, int]:
    return record.task, record.length, record.depth, record.index


def distinct(records: Sequence[Some], key: Callable[[Some], Key]) -> list[Key]:
    """The keys of `records`, each once, in their order."""
    return list(dict.fromkeys(map(key, records)))
