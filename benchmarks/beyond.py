"""Needles in prompts that are longer than the model has positions: found or not, and in how much memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.resident import Gauge
from winnow import LLM, Plan
from winnow.errors import InputError
from winnow.evaluation.accuracy import wilson
from winnow.evaluation.evaluate import Progress, Record, cases, evaluate, silent
from winnow.tasks import Task

PLANS = ("infllm + mapped(resident_mib=64)", "streaming(sink=128, recent=4096)")
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True)
class Answered:
    """One answer, and the most bytes of memory while it was made."""

    record: Record
    peak_bytes: int


@dataclass(frozen=True)
class BeyondRow:
    """A plan at one length. times: the model's positions; score: 0 .. 1, with its 95 % interval low .. high, and by
    depth; bytes: the most of any answer, of units in memory and all beside them (total), of the latter (aux), of files
    (disk) and of the process (peak). units, pairs: shares of full attention's, by decode steps and by rows of prompts;
    ttft_s: the mean."""

    plan: str
    length: int
    times: float
    examples: int
    score: float
    low: float
    high: float
    by_depth: dict[str, float]
    total_bytes: int
    aux_bytes: int
    disk_bytes: int
    peak_bytes: int
    units: float
    pairs: float | None
    ttft_s: float


def measure_beyond(
    llm: LLM,
    plans: Sequence[Plan],
    task: Task,
    times: Sequence[int],
    examples: int,
    gauge: Gauge,
    *,
    seed: int = 0,
    progress: Progress = silent,
) -> Iterator[Answered]:
    """Ask every plan for the same needles of a task, `examples` at each depth, in prompts so many times the positions.

    Raises, before any work, CapacityError where a plan's prompts cannot be longer than the model's positions, and
    InputError where the task has no needle.
    """
    lengths = [each * llm.decoder.shape.max_positions for each in times]
    if not next(cases(llm, [task], lengths, 1, seed=seed, depths=DEPTHS)).example.depths:
        raise InputError(
            f"task {task.name} has no needle that lies at a depth; give one that has, like passkey or number"
        )
    records = evaluate(llm, plans, [task], lengths, examples, seed=seed, depths=DEPTHS, progress=progress)
    gauge.begin()
    for record in records:
        yield Answered(record, gauge.peak())
        gauge.begin()


def summarise_beyond(answers: Sequence[Answered], positions: int) -> list[BeyondRow]:
    """A row for every length, the shortest first, and plan."""
    groups: dict[tuple[int, str], list[Answered]] = {}
    for each in answers:
        groups.setdefault((each.record.length, each.record.plan), []).append(each)
    return [_row(groups[key], positions) for key in sorted(groups, key=lambda key: key[0])]


def _row(group: Sequence[Answered], positions: int) -> BeyondRow:
    first, stats = group[0].record, [each.record.stats for each in group]
    scores = [each.record.score or 0.0 for each in group]
    by_depth: dict[str, list[float]] = {}
    for each, score in zip(group, scores, strict=True):
        by_depth.setdefault(str(each.record.depth), []).append(score)
    score, pairs = sum(scores) / len(scores), sum(each.pairs_full for each in stats)
    return BeyondRow(
        plan=first.plan,
        length=first.length,
        times=first.length / positions,
        examples=len(group),
        score=score,
        **dict(zip(("low", "high"), wilson(score, len(group)), strict=True)),
        by_depth={depth: sum(each) / len(each) for depth, each in by_depth.items()},
        total_bytes=max(each.total_bytes for each in stats),
        aux_bytes=max(each.aux_bytes for each in stats),
        disk_bytes=max(each.disk_bytes for each in stats),
        peak_bytes=max(each.peak_bytes for each in group),
        units=sum(each.units_read for each in stats) / max(1, sum(each.units_full for each in stats)),
        pairs=sum(each.pairs_read for each in stats) / pairs if pairs else None,
        ttft_s=sum(each.ttft_s for each in stats) / len(stats),
    )
