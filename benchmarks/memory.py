"""What a long prompt costs in memory and time: every plan at every length, each in a process of its own.

A fresh process holds nothing of the runs before it, so that its memory is that of this run alone.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from benchmarks.fresh import ProcessKilled, in_fresh_process
from benchmarks.resident import gauge_of
from benchmarks.source import Source
from benchmarks.speed import timed_feed
from winnow import LLM, Plan, SamplingParams
from winnow.errors import CapacityError, InputError
from winnow.evaluation.evaluate import Progress, silent

STEPS = 16  # decode steps after the prompt
WARM_CHUNKS = 4  # the prompt that is not counted, in prefill chunks


@dataclass(frozen=True)
class Figures:
    """What is told of a prompt of `length` tokens under one plan, once and as the median of several runs.

    cache_bytes, peak_cache_bytes, aux_bytes, total_bytes, allocated_bytes: as in `Stats`. bound_bytes: the most that
    the keep policy's closed formula allows; None where a layer's cache grows with the prompt. before_bytes: memory of
    the process with the model loaded and a short prompt under the plan done; peak_bytes: the most from then to the last
    step.
    """

    plan: str
    length: int
    ttft_s: float
    cache_bytes: int
    peak_cache_bytes: int
    aux_bytes: int
    total_bytes: int
    allocated_bytes: int
    bound_bytes: int | None
    before_bytes: int
    peak_bytes: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class MemoryRun(Figures):
    """One run. steps_s: of every decode step; memory: what before_bytes and peak_bytes are of."""

    steps_s: tuple[float, ...]
    memory: str


@dataclass(frozen=True)
class LeftOut:
    """A plan that was not run at a length, and why."""

    plan: str
    length: int
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class MemoryRow(Figures):
    """The medians of `repeats` runs.

    tokens_per_s: prompt tokens over ttft_s. growth: peak_bytes over that of the plan's shortest prompt.
    """

    repeats: int
    tokens_per_s: float
    step_s: float
    growth: float


def runnable(
    llm: LLM, plans: Sequence[Plan], lengths: Sequence[int], *, full_up_to: int, steps: int = STEPS
) -> tuple[list[tuple[Plan, int]], list[LeftOut]]:
    """What to run, the shortest prompts first, and where full attention is left out.

    full_up_to: the longest prompt of full attention, whose time grows with the square of the length.
    Raises InputError, CapacityError or PlanError where another plan cannot be run at a length.
    """
    jobs, left = [], []
    for length in sorted(lengths):
        for plan in plans:
            try:
                if plan.is_full and length > full_up_to:
                    raise CapacityError(f"more than the {full_up_to:,} tokens that full attention is run up to")
                llm.check([[0] * length], SamplingParams(max_tokens=steps + 1), plan=plan)
            except CapacityError as error:
                if not plan.is_full:
                    raise
                left.append(LeftOut(str(plan), length, str(error)))
            else:
                jobs.append((plan, length))
    return jobs, left


def measure_memory(
    source: Source, jobs: Sequence[tuple[Plan, int]], *, repeats: int = 1, progress: Progress = silent
) -> Iterator[MemoryRun | LeftOut]:
    """All jobs, `repeats` times over; yields a MemoryRun each, or a LeftOut where the system ended the process.

    progress: called with the number of prompt tokens just processed.
    """
    for _ in range(repeats):
        for plan, length in jobs:
            try:
                yield in_fresh_process(_measure, source, plan, length, progress=progress)
            except ProcessKilled as killed:
                reason = f"its process was ended by {killed}, as where memory is short"
                yield LeftOut(str(plan), length, reason)


def measure_here(llm: LLM, plan: Plan, length: int, *, steps: int = STEPS, progress: Progress = silent) -> MemoryRun:
    """One run in this process, of random tokens; the memory of whatever else it holds is counted too."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(llm.decoder.shape.vocab, (length + steps,), generator=generator)
    prompt, fed = tokens[:length].tolist(), tokens[length:].tolist()
    timed_feed(llm.session(plan=plan, max_tokens=3), prompt[: _warm_tokens(llm, plan, length)], fed[:2])
    gauge = gauge_of(llm.device)
    before, session = gauge.begin(), llm.session(plan=plan, max_tokens=len(fed) + 1)
    ttft_s, *steps_s = timed_feed(session, prompt, fed, progress)
    stats = session.stats
    return MemoryRun(
        plan=str(plan),
        length=length,
        ttft_s=ttft_s,
        steps_s=tuple(steps_s),
        cache_bytes=stats.cache_bytes,
        peak_cache_bytes=stats.peak_cache_bytes,
        aux_bytes=stats.aux_bytes,
        total_bytes=stats.total_bytes,
        allocated_bytes=stats.allocated_bytes,
        bound_bytes=session.held.bound_bytes,
        before_bytes=before,
        peak_bytes=gauge.peak(),
        memory=gauge.name,
    )


def _measure(source: Source, plan: Plan, length: int, progress: Progress) -> MemoryRun:
    return measure_here(source.load(), plan, length, progress=progress)


def summarise_memory(runs: Sequence[MemoryRun]) -> list[MemoryRow]:
    """A row per plan and length, the lengths of a plan side by side and ascending."""
    rows = []
    for plan in dict.fromkeys(run.plan for run in runs):
        mine = [run for run in runs if run.plan == plan]
        groups = [[run for run in mine if run.length == length] for length in sorted({run.length for run in mine})]
        shortest = statistics.median(run.peak_bytes for run in groups[0])
        rows += [_row(group, shortest) for group in groups]
    return rows


def _row(group: Sequence[MemoryRun], shortest: float) -> MemoryRow:
    first = group[0]
    ttft_s = statistics.median(run.ttft_s for run in group)
    peak = statistics.median(run.peak_bytes for run in group)
    medians = {
        "ttft_s": ttft_s,
        "before_bytes": int(statistics.median(run.before_bytes for run in group)),
        "peak_bytes": int(peak),
    }
    return MemoryRow(
        **{each.name: getattr(first, each.name) for each in fields(Figures)} | medians,
        repeats=len(group),
        tokens_per_s=first.length / ttft_s,
        step_s=statistics.median(statistics.median(run.steps_s) for run in group),
        growth=peak / shortest,
    )


def _warm_tokens(llm: LLM, plan: Plan, length: int) -> int:
    """A few chunks, or as many more as the plan's least prompt takes; at most `length`."""
    tokens = WARM_CHUNKS * llm.prefill_chunk
    while tokens < length:
        try:
            llm.check([[0] * tokens], SamplingParams(max_tokens=1), plan=plan)
        except InputError:
            tokens *= 2
        else:
            return tokens
    return length
