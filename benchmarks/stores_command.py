"""`python -m benchmarks stores`: what holding units in fewer bits costs, on real texts and in retrieval."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from rich.console import Group, RenderableType

from benchmarks.commands.engine import Stores
from benchmarks.fidelity_by_domain import Interval
from benchmarks.record import Record, about
from benchmarks.source import Source, load_checked
from benchmarks.steps import runnable
from benchmarks.stores import PLANS, StoresRow, measure_stores, passages, summarise_stores
from benchmarks.tables import length_table
from winnow.cli.deliver import deliver
from winnow.cli.inputs import make_tasks, parse_plans, refuse
from winnow.cli.options import TASKS
from winnow.cli.terminal import collect, new_table
from winnow.evaluation.accuracy import Accuracy, accuracies
from winnow.evaluation.compare import with_full
from winnow.evaluation.evaluate import evaluate


def stores(options: Stores) -> int:
    """Measure stores on passages, and ask questions; returns the exit code."""
    lengths, fed, questions = sorted(set(options.length)), options.fed, options.questions
    if not questions:
        refuse("is about --questions, of which there are none", {"--task": options.task})
    tasks = make_tasks(options.task or TASKS, None, None) if questions else []
    plans = with_full(parse_plans(options.plan))
    llm = load_checked(Source(options), plans, lengths[-1] + fed)
    chosen = passages(llm, options.text, lengths[-1] + fed, options.windows)
    skipped: dict[str, str] = {}
    if not options.plan:
        plans, skipped = runnable(llm, parse_plans(PLANS), lengths, fed)
    total, wanted = len(plans) * len(chosen) * sum(length + fed for length in lengths), len(chosen) * len(lengths)
    measure = partial(measure_stores, llm, plans, chosen, lengths, fed)
    found = collect("stores", total, f"{wanted} passages", measure)
    measured = [each for group in found for each in group]
    rows, name = summarise_stores(measured), options.model_name
    asked = len(plans) * questions * len(tasks)
    ask = partial(evaluate, llm, plans, tasks, lengths, questions, seed=options.seed)
    answers = collect("asking", asked * sum(lengths), f"{asked * len(lengths)} answers", ask) if asked else []
    scores = accuracies(answers, (0.5,)) if answers else []
    figures = {
        "fed": fed,
        "windows": options.windows,
        "questions": questions,
        "summary": [row.to_dict() for row in rows],
        "scores": [each.to_dict() for each in scores],
        "skipped": skipped,
        "records": [each.to_dict() for each in measured],
        "answers": [each.to_dict() for each in answers],
    }
    title = f"{name}, {len(chosen)} passages, {fed} tokens fed, {torch.get_num_threads()} threads"
    shown = Group(_passages(rows, title), *([_scores(scores, name)] if scores else []), *_left_out(skipped))
    complete = len(found) == wanted and len(answers) == asked * len(lengths)
    return deliver(
        Record("stores", figures, shown, complete=complete, about=about(llm, name, seed=options.seed)), options
    )


COLUMNS: dict[str, Callable[[StoresRow], str]] = {
    "KL": lambda row: f"{row.kl.mean:.4f}",
    "KL, 95 %": lambda row: _range(row.kl, 4),
    "top-1\n%": lambda row: f"{100 * row.top1.mean:.1f}",
    "perplexity\nx": lambda row: f"{row.ratio.mean:.4f}",
    "x, 95 %": lambda row: _range(row.ratio, 3),
    "units\nMiB": lambda row: f"{row.cache_bytes / 2**20:.2f}",
    "units\n%": lambda row: f"{100 * row.cache_share:.1f}",
    "memory\n%": lambda row: f"{100 * row.total_share:.1f}",
}
CAPTION = (
    "KL(full || plan) of the next token, nats; top-1: both find the same token likeliest; perplexity: the plan's over "
    "full attention's; 95 %: passages resampled, in pairs; units: at the end, and of full attention's; memory: the "
    "peak of all that is held, of full attention's"
)


def _passages(rows: Sequence[StoresRow], title: str) -> RenderableType:
    """A section per length, a row per plan."""
    return length_table(rows, COLUMNS, title, CAPTION, "after")


def _scores(scores: Sequence[Accuracy], model: str) -> RenderableType:
    """What was found, per length, task and plan."""
    table = new_table(f"{model}: questions answered", "score: the mean, with its 95 % interval (Wilson's)")
    for heading in ("prompt", "task", "plan", "answers", "score, %", "95 %"):
        table.add_column(heading, justify="left" if heading in ("task", "plan") else "right")
    for each in scores:
        interval = f"{100 * each.low:.0f}-{100 * each.high:.0f}"
        shown = f"{100 * each.score:.1f}"
        table.add_row(f"{each.length:,}", each.task, each.plan, str(each.examples), shown, interval)
    return table


def _left_out(skipped: dict[str, str]) -> list[str]:
    return [f"left out: {plan}: {reason}" for plan, reason in skipped.items()]


def _range(interval: Interval, digits: int) -> str:
    return f"{interval.low:.{digits}f}-{interval.high:.{digits}f}"
