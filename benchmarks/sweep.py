"""Many settings of plans on the same questions: what each one saves, and what is left of full attention's score."""

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.schedule import flops
from benchmarks.watch import generate_watched
from winnow import LLM, Plan, SamplingParams, Stats
from winnow.evaluation.accuracy import wilson
from winnow.evaluation.compare import with_full
from winnow.evaluation.evaluate import Case, Progress, cases, check_lengths, silent
from winnow.tasks import Task

ALL = "all tasks"
FULL = "full"


@dataclass(frozen=True)
class Run:
    """One example answered under one plan.

    plan: as it was asked for; run_as: with the seed that it ran with. score: 0 .. 1. prefill_rows: per layer, prompt
    tokens computed before the first new token; computed: by the end. flops_share: of prefill, counted from
    `prefill_rows`, of full attention's.
    """

    task: str
    length: int
    index: int
    plan: str
    run_as: str
    name: str
    score: float
    text: str
    prefill_rows: tuple[int, ...]
    computed: tuple[int, ...]
    flops_share: float
    stats: Stats

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {**asdict(self), "stats": self.stats.to_dict()}


@dataclass(frozen=True)
class SweepRow:
    """One plan on one task (or `ALL`) at one length: means over `examples`, and over the seeds of random plans.

    score: 0 .. 1, with its 95 % interval; relative_score: of full attention's, None where that is 0. ttft_speedup,
    generation_speedup: medians over the examples of full attention's time over the plan's, on the same prompt; a whole
    generation is the answer that the plan gives, of `new_tokens`. rows_share, flops_share: of prefill, of full
    attention's; what a plan spends to shorten a prompt is in the times only. prompt_computed: share of the prompt's
    tokens computed by the end, the mean over layers, and prompt_computed_last in the last one. revived_rows: per
    example. aux_bytes: the most of any example. peak_ratio: the most bytes held at once, of
    full attention's.
    """

    plan: str
    name: str
    task: str
    length: int
    examples: int
    seeds: int
    score: float
    low: float
    high: float
    relative_score: float | None
    ttft_s: float
    ttft_speedup: float
    generation_speedup: float
    new_tokens: float
    rows_share: float
    flops_share: float
    prompt_computed: float
    prompt_computed_last: float
    revived_rows: float
    aux_bytes: int
    peak_ratio: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def sweep(
    llm: LLM, plans: Sequence[str | Plan], tasks: Sequence[Task], lengths: Sequence[int], examples: int, *,
    seeds: int = 5, seed: int = 0, progress: Progress = silent,
) -> Iterator[Run]:  # fmt: skip
    """Answer every example under full attention and `plans`, one prompt at a time; yields a Run per answer.

    An example is answered under all plans before the next, another plan first each time, so that noise and drift hit
    all alike; every plan runs once before the first example of a length, unmeasured. seeds: how many seeds a plan with
    a `seed` runs with. seed: of the examples. progress: called with the number of prompt tokens just processed.
    Raises, before any work: InputError, CapacityError, PlanError where a task, length or plan cannot be run.
    """
    chosen = with_full(plans)
    check_lengths(llm, chosen, lengths)
    for length in lengths:
        for task in tasks:
            case = next(cases(llm, [task], [length], 1, seed=seed))
            for plan in chosen:
                llm.check([case.ids], case.params, plan=plan)
    arms = [(plan, one) for plan in chosen for one in seeded(plan, seeds)]
    return _runs(llm, arms, cases(llm, tasks, lengths, examples, seed=seed), progress)


def seeded(plan: Plan, seeds: int) -> list[Plan]:
    """The plan with `seeds` seeds in turn, from its own on; the plan alone where no policy has a seed."""
    random = [
        verb
        for verb, policy in plan.policies.items()
        if any(field.name == "seed" for field in dataclasses.fields(policy))
    ]

    def shifted(by: int) -> Plan:
        policies: dict[str, Any] = {verb: plan.policies[verb] for verb in random}
        return dataclasses.replace(
            plan, **{verb: dataclasses.replace(policy, seed=policy.seed + by) for verb, policy in policies.items()}
        )

    return [shifted(by) for by in range(seeds)] if random else [plan]


def arms_of(plans: Sequence[str | Plan], seeds: int) -> int:
    """How many answers an example gets in a sweep of `plans`."""
    return sum(len(seeded(plan, seeds)) for plan in with_full(plans))


def finished_runs(runs: Sequence[Run], arms: int) -> list[Run]:
    """The runs of the examples that all arms have answered, so that every plan is judged on the same."""
    count: dict[tuple[str, int, int], int] = {}
    for run in runs:
        count[_case(run)] = count.get(_case(run), 0) + 1
    return [run for run in runs if count[_case(run)] == arms]


def summarise_sweep(runs: Sequence[Run]) -> list[SweepRow]:
    """A row per length, task and plan in the order they were asked for, full attention first, `ALL` tasks last.

    runs: of finished examples; see `finished_runs`.
    """
    full = {_case(run): run for run in runs if run.plan == FULL}
    plans = sorted(dict.fromkeys(run.plan for run in runs), key=lambda plan: plan != FULL)
    rows = []
    for length in dict.fromkeys(run.length for run in runs):
        here = [run for run in runs if run.length == length]
        tasks = list(dict.fromkeys(run.task for run in here))
        for task in [*tasks, ALL] if len(tasks) > 1 else tasks:
            group = [run for run in here if task in (ALL, run.task)]
            rows += [_row([run for run in group if run.plan == plan], full, task) for plan in plans]
    return rows


def _runs(llm: LLM, arms: list[tuple[Plan, Plan]], cases: Iterator[Case], progress: Progress) -> Iterator[Run]:
    warm = None
    for turn, case in enumerate(cases):
        if case.length != warm:
            warm = case.length
            for plan in dict(arms):
                generate_watched(llm, case.ids, SamplingParams(max_tokens=2, ignore_eos=True), plan)
        shift = turn % len(arms)
        for plan, run_as in [*arms[shift:], *arms[:shift]]:
            yield _run(llm, case, plan, run_as, progress)


def _run(llm: LLM, case: Case, plan: Plan, run_as: Plan, progress: Progress) -> Run:
    done = generate_watched(llm, case.ids, case.params, run_as, progress)
    shape, stats = llm.decoder.shape, done.completion.stats
    names = [policy.name for policy in plan.policies.values() if not policy.identity]
    return Run(
        task=case.task,
        length=case.length,
        index=case.index,
        plan=str(plan),
        run_as=str(run_as),
        name=" + ".join(names) or FULL,
        score=case.score(case.example, done.completion.text) if case.score else 0.0,
        text=done.completion.text,
        prefill_rows=tuple(done.computed[0]),
        computed=tuple(done.computed[-1]),
        flops_share=flops(done.computed[0], shape) / flops([stats.prompt_tokens] * shape.layers, shape),
        stats=stats,
    )


def _row(group: Sequence[Run], full: dict[tuple[str, int, int], Run], task: str) -> SweepRow:
    examples = len({_case(run) for run in group})
    score = statistics.fmean(run.score for run in group)
    low, high = wilson(score, examples)
    base = statistics.fmean(full[_case(run)].score for run in group)

    def mean(value: Callable[[Run], float]) -> float:
        return statistics.fmean(map(value, group))

    def speedup(seconds: Callable[[Stats], float]) -> float:
        return statistics.median(seconds(full[_case(run)].stats) / seconds(run.stats) for run in group)

    return SweepRow(
        plan=group[0].plan,
        name=group[0].name,
        task=task,
        length=group[0].length,
        examples=examples,
        seeds=len({run.run_as for run in group}),
        score=score,
        low=low,
        high=high,
        relative_score=score / base if base else None,
        ttft_s=statistics.median(run.stats.ttft_s for run in group),
        ttft_speedup=speedup(lambda stats: stats.ttft_s),
        generation_speedup=speedup(lambda stats: stats.total_s),
        new_tokens=mean(lambda run: run.stats.new_tokens),
        rows_share=mean(lambda run: statistics.fmean(run.prefill_rows) / run.stats.prompt_tokens),
        flops_share=mean(lambda run: run.flops_share),
        prompt_computed=mean(lambda run: statistics.fmean(run.computed) / run.stats.prompt_tokens),
        prompt_computed_last=mean(lambda run: run.computed[-1] / run.stats.prompt_tokens),
        revived_rows=mean(lambda run: run.stats.revived_rows),
        aux_bytes=max(run.stats.aux_bytes for run in group),
        peak_ratio=mean(lambda run: run.stats.total_bytes / full[_case(run)].stats.total_bytes),
    )


def _case(run: Run) -> tuple[str, int, int]:
    return run.task, run.length, run.index
