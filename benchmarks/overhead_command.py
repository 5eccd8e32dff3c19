"""`python -m benchmarks overhead`: what a decode step spends outside kernels."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

import torch
from rich.table import Table

from benchmarks.commands.engine import Overhead
from benchmarks.document import document_ids
from benchmarks.overhead import OverheadRow, Spent, measure_overhead, summarise_overhead, tokens
from benchmarks.record import Record, about
from benchmarks.source import Source, load_checked
from benchmarks.tables import plan_table
from winnow.cli.deliver import deliver
from winnow.cli.inputs import parse_plans
from winnow.cli.terminal import Meter, interruptible
from winnow.errors import InputError
from winnow.evaluation.compare import with_full
from winnow.kernels.launch import numba_missing

PLANS = ("streaming(recent=512)", "slowfast(budget=512, recent=128)", "lazyllm", "h2o(budget=512)")


def overhead(options: Overhead) -> int:
    """Time decode steps and their kernels; returns the exit code."""
    if (missing := numba_missing()) is not None:
        raise InputError(f"there are no kernels to leave out: {missing}")
    plans = with_full(parse_plans(options.plan, PLANS))
    llm = load_checked(Source(options), plans, options.length + tokens(options.steps, options.repeats))
    if llm.device.type != "cpu":
        raise InputError(f"kernels are timed where Python waits for them, on a CPU, not on {llm.device}")
    prompt = document_ids(llm, options.text, options.length)
    settings = {name: getattr(options, name) for name in ("length", "steps", "repeats")}
    total, spent = options.repeats * len(plans), list[Spent]()
    with Meter("steps", total) as meter, interruptible():
        for each in measure_overhead(
            llm, plans, prompt, steps=options.steps, repeats=options.repeats, progress=meter.advance
        ):
            spent.append(each)
    rows, name = summarise_overhead(spent, llm.decoder.shape.layers), options.model_name
    figures = {
        **settings,
        "summary": [{**asdict(row), "calls_per_layer": row.calls_per_layer} for row in rows],
        "records": [asdict(each) for each in spent],
    }
    title = f"{name} after {options.length:,} tokens, {torch.get_num_threads()} threads"
    shown = _table(rows, title) if rows else "no turn was finished"
    return deliver(Record("overhead", figures, shown, complete=len(spent) == total, about=about(llm, name)), options)


COLUMNS: dict[str, Callable[[OverheadRow], str]] = {
    "step\nms": lambda row: f"{1000 * row.step_s:.2f}",
    "timed\nms": lambda row: f"{1000 * row.watched_s:.2f}",
    "kernels\nms": lambda row: f"{1000 * row.kernels_s:.2f}",
    "outside\nms": lambda row: f"{1000 * row.outside_s:.2f}",
    "least\nms": lambda row: f"{1000 * row.least_s:.2f}",
    "kernels\nentered": lambda row: f"{row.kernels:g}",
    "Python\ncalls": lambda row: f"{row.calls:,}",
    "calls per\nlayer": lambda row: f"{row.calls_per_layer:.1f}",
}
CAPTION = (
    "a decode step of one sequence, sampling and text included, medians of all turns; timed: with every kernel timed; "
    "outside: the same less its kernels, step by step, and the least; torch's own operations are outside"
)


def _table(rows: Sequence[OverheadRow], title: str) -> Table:
    return plan_table(rows, COLUMNS, title, CAPTION)
