"""`python -m benchmarks stores`: what holding units in fewer bits costs, on real texts and in retrieval."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path

import torch
from rich.console import Group, RenderableType

from benchmarks.commands.engine import Stores
from benchmarks.fidelity_by_domain import Interval
from benchmarks.peer_workers import asked_more
from benchmarks.record import Record, about
from benchmarks.source import Source, load_checked
from benchmarks.steps import runnable
from benchmarks.stores import (
    PLANS,
    Passage,
    Score,
    Stored,
    StoresRow,
    measure_stores,
    passages,
    scores,
    summarise_stores,
)
from benchmarks.stores_peers import measure_peers
from benchmarks.tables import length_table
from winnow import LLM
from winnow.cli.compare_peers import ERROR, Typed
from winnow.cli.deliver import deliver
from winnow.cli.inputs import make_tasks, parse_plans, refuse
from winnow.cli.options import TASKS
from winnow.cli.terminal import collect, new_table, say
from winnow.devices import parse_device
from winnow.errors import CapacityError, WinnowError
from winnow.evaluation.compare import with_full
from winnow.evaluation.evaluate import Answered, Progress, cases, evaluate
from winnow.evaluation.peers.compare import Answer, Ended, Workers
from winnow.evaluation.peers.weights import weights_of
from winnow.tasks import Task

Answers = list[tuple[str, Answered]]
ANSWERED = tuple(field.name for field in fields(Answered))


def stores(options: Stores) -> int:
    """Measure stores on passages, and ask questions; returns the exit code."""
    lengths, fed, questions = sorted(set(options.length)), options.fed, options.questions
    if not questions:
        refuse("is about --questions, of which there are none", {"--task": options.task})
    if not options.peer:
        refuse("is about --peer only", {"--peer-python": options.peer_python})
    tasks = make_tasks(options.task or TASKS, None, None) if questions else []
    plans, typed = with_full(parse_plans(options.plan)), Typed(options.peer, options.peer_python)
    typed.check(str(parse_device(options.device)), options.threads)
    llm = load_checked(Source(options), plans, lengths[-1] + fed)
    chosen = passages(llm, options.text, lengths[-1] + fed, options.windows)
    skipped: dict[str, str] = {}
    if not options.plan:
        plans, skipped = runnable(llm, parse_plans(PLANS), lengths, fed)
    total, wanted = len(plans) * len(chosen) * sum(length + fed for length in lengths), len(chosen) * len(lengths)
    measure = partial(measure_stores, llm, plans, chosen, lengths, fed)
    found = collect("stores", total, f"{wanted} passages", measure)
    measured, name = [each for group in found for each in group], options.model_name
    asked = len(plans) * questions * len(tasks)
    ask = partial(evaluate, llm, plans, tasks, lengths, questions, seed=options.seed)
    records = collect("asking", asked * sum(lengths), f"{asked * len(lengths)} answers", ask) if asked else []
    answers: Answers = [(each.plan, each) for each in records]
    complete = len(found) == wanted and len(answers) == asked * len(lengths)
    failed = 0
    if options.peer and complete:
        try:
            complete = _beside(llm, typed, options, tasks, chosen, measured, answers)
        except WinnowError as error:  # what has been measured is not lost
            failed, skipped["--peer"] = ERROR, str(error)
    rows, scored = summarise_stores(measured), scores(answers)
    figures = {
        "fed": fed,
        "windows": options.windows,
        "questions": questions,
        "summary": [row.to_dict() for row in rows],
        "scores": [each.to_dict() for each in scored],
        "skipped": skipped,
        "records": [each.to_dict() for each in measured],
        "answers": [{"plan": plan, **{name: getattr(each, name) for name in ANSWERED}} for plan, each in answers],
    }
    title = f"{name}, {len(chosen)} passages, {fed} tokens fed, {torch.get_num_threads()} threads"
    shown = Group(_passages(rows, title), *([_scores(scored, name)] if scored else []), *_left_out(skipped))
    return deliver(
        Record("stores", figures, shown, None, complete, about(llm, name, seed=options.seed), failed), options
    )


def _beside(
    llm: LLM,
    typed: Typed,
    options: Stores,
    tasks: Sequence[Task],
    chosen: Sequence[Passage],
    measured: list[Stored],
    answers: Answers,
) -> bool:
    """Add what peers make of the same passages and questions; whether all of it is there.

    Raises CapacityError where a peer ends before its time.
    """
    lengths, fed, arms = sorted(set(options.length)), options.fed, [asked_more(arm) for arm in typed.arms(llm)]
    made = list(cases(llm, tasks, lengths, options.questions, seed=options.seed)) if tasks else []
    context = max([lengths[-1] + fed, *(len(case.ids) + case.example.max_tokens for case in made)])
    wanted, given = len(chosen) * len(lengths), len(arms) * len(made)
    with (
        weights_of(llm, arms, say) as files,
        Workers(arms, threads=torch.get_num_threads(), device=str(llm.device)) as workers,
        tempfile.TemporaryDirectory(prefix="winnow-logits-") as scratch,
    ):
        workers.load(files, context)
        measure = partial(measure_peers, workers, arms, chosen, lengths, fed, Path(scratch))
        total = len(arms) * len(chosen) * sum(length + fed for length in lengths)
        found = collect("peers", total, f"{wanted} passages", measure)

        def ask(progress: Progress) -> Iterator[Answer]:
            for each in workers.answer(llm, made, options.seed, progress):
                if isinstance(each, Ended):
                    raise CapacityError(f"{each.arm} ended after {each.answers} answers: {each.reason}; leave it out")
                yield each

        told = collect("asking peers", len(arms) * sum(len(case.ids) for case in made), f"{given} answers", ask)
    measured += [each for group in found for each in group]
    answers += [(each.arm, each) for each in told]
    return len(found) == wanted and len(told) == given


COLUMNS: dict[str, Callable[[StoresRow], str]] = {
    "KL": lambda row: f"{row.kl.mean:.4f}",
    "KL, 95 %": lambda row: _range(row.kl, 4),
    "top-1\n%": lambda row: f"{100 * row.top1.mean:.1f}",
    "perplexity\nx": lambda row: f"{row.ratio.mean:.4f}",
    "x, 95 %": lambda row: _range(row.ratio, 3),
    "units\nMiB": lambda row: f"{row.cache_bytes / 2**20:.2f}",
    "units\n%": lambda row: f"{100 * row.cache_share:.1f}",
    "memory\n%": lambda row: "-" if row.total_share is None else f"{100 * row.total_share:.1f}",
}
CAPTION = (
    "KL(full || plan) of the next token, nats; top-1: both find the same token likeliest; perplexity: the plan's over "
    "full attention's; 95 %: passages resampled, in pairs; units: at the end, and of full attention's; memory: the "
    "peak of all that is held, of full attention's; a peer: of the first peer of its family, in place of full attention"
)


def _passages(rows: Sequence[StoresRow], title: str) -> RenderableType:
    """A section per length, a row per plan."""
    return length_table(rows, COLUMNS, title, CAPTION, "after")


def _scores(scored: Sequence[Score], model: str) -> RenderableType:
    """What was found, per length, task and plan."""
    table = new_table(f"{model}: questions answered", "score: the mean, with its 95 % interval (Wilson's)")
    for heading in ("prompt", "task", "plan", "answers", "score, %", "95 %"):
        table.add_column(heading, justify="left" if heading in ("task", "plan") else "right")
    for each in scored:
        interval = f"{100 * each.low:.0f}-{100 * each.high:.0f}"
        shown = f"{100 * each.score:.1f}"
        table.add_row(f"{each.length:,}", each.task, each.plan, str(each.examples), shown, interval)
    return table


def _left_out(skipped: dict[str, str]) -> list[str]:
    return [f"left out: {plan}: {reason}" for plan, reason in skipped.items()]


def _range(interval: Interval, digits: int) -> str:
    return f"{interval.low:.{digits}f}-{interval.high:.{digits}f}"
