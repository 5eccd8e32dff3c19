"""`python -m benchmarks steps`: what a decode step takes under many plans, on a real text."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

import torch
from rich.console import Group, RenderableType

from benchmarks.commands.engine import Steps
from benchmarks.document import document_ids
from benchmarks.record import Record, about
from benchmarks.source import Source, load_checked
from benchmarks.steps import PLANS, WARMUP, Stepped, StepsRow, measure_steps, runnable, summarise_steps
from benchmarks.tables import length_table
from winnow.cli.deliver import deliver
from winnow.cli.inputs import parse_plans
from winnow.cli.terminal import Meter, interruptible
from winnow.evaluation.compare import with_full


def steps(options: Steps) -> int:
    """Time decode steps; returns the exit code."""
    lengths, new = sorted(set(options.length)), WARMUP + options.repeats * options.steps
    plans = with_full(parse_plans(options.plan))
    llm = load_checked(Source(options), plans, lengths[-1] + new)
    ids = document_ids(llm, options.text, lengths[-1] + new)
    skipped: dict[str, str] = {}
    if not options.plan:
        plans, skipped = runnable(llm, parse_plans(PLANS), lengths, new)
    settings = {name: getattr(options, name) for name in ("steps", "repeats")}
    total = len(plans) * sum(length + options.repeats * options.steps for length in lengths)
    measured: list[Stepped] = []
    with Meter("steps", total) as meter, interruptible():
        for found in measure_steps(llm, plans, ids, lengths, **settings, progress=meter.advance):
            measured += found
            meter.note(f"after {found[0].length:,} tokens: done")
    rows, name = summarise_steps(measured), options.model_name
    figures = {
        **settings,
        "summary": [asdict(row) for row in rows],
        "skipped": skipped,
        "records": [asdict(each) for each in measured],
    }
    shown = _shown(rows, skipped, f"{name}, {torch.get_num_threads()} threads") if rows else "no length was finished"
    complete = len(measured) == len(plans) * len(lengths)
    return deliver(Record("steps", figures, shown, complete=complete, about=about(llm, name)), options)


COLUMNS: dict[str, Callable[[StepsRow], str]] = {
    "median\nms": lambda row: f"{1000 * row.median_s:.2f}",
    "least\nms": lambda row: f"{1000 * row.min_s:.2f}",
    "mean\nms": lambda row: f"{1000 * row.mean_s:.2f}",
    "of full\nx": lambda row: f"{row.ratio:.3f}",
    "range\nx": lambda row: f"{row.ratio_low:.2f}-{row.ratio_high:.2f}",
    "units": lambda row: f"{row.units:,.0f}",
}
CAPTION = (
    "a decode step, of all turns; of full: a turn's median over full attention's in the same turn, the median turn's, "
    "the least and the most; units: that a step reads"
)


def _shown(rows: Sequence[StepsRow], skipped: dict[str, str], title: str) -> RenderableType:
    """A section per length, a row per plan; below, what the model cannot run."""
    table = length_table(rows, COLUMNS, title, CAPTION, "after")
    return Group(table, *(f"left out: {plan}: {reason}" for plan, reason in skipped.items()))
