"""`python -m benchmarks mapped`: a context in files, in a part of memory that it is larger than."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from rich.table import Table

from benchmarks.commands.engine import Mapped
from benchmarks.mapped import MappedRun, measure_mapped
from benchmarks.record import Record, about
from benchmarks.source import Source, load_checked
from benchmarks.tables import MIB
from winnow.cli.deliver import deliver
from winnow.cli.inputs import parse_plan
from winnow.cli.terminal import collect, new_table
from winnow.errors import InputError
from winnow.policies.store.mapped import Mapped as Store


def mapped(options: Mapped) -> int:
    """Measure a prompt that fits in memory and in files, then the long one in files; returns the exit code."""
    plan = parse_plan(options.plan)
    if not plan.store.identity:
        raise InputError(
            f"--plan: {plan} says how units are stored, and this benchmark does; leave {plan.store.name} out"
        )
    path = None if options.path is None else str(options.path)
    files = replace(plan, store=Store(path=path, resident_mib=options.resident_mib))
    held = options.of_model(device=options.device, prefill_chunk=options.prefill_chunk)
    source = Source(held, options.shape, max(options.length, options.fits) + options.steps)
    llm = load_checked(source, [plan, files], max(options.length, options.fits) + options.steps)
    settings = {each: getattr(options, each) for each in ("length", "fits", "steps", "resident_mib")}
    known = about(llm, options.shape, plan=str(plan), **settings)
    del llm  # every process has its own
    jobs = [(plan, options.fits), (files, options.fits), (files, options.length)]
    total = sum(length + options.steps for _, length in jobs)
    runs = collect(
        "measuring", total, f"{len(jobs)} processes", partial(measure_mapped, source, jobs, steps=options.steps)
    )
    rows = [summary(run, runs[0]) for run in runs]
    shown = _table(rows, known["model"]) if rows else "no process was finished"
    figures = {"summary": rows, "records": [asdict(run) for run in runs]}
    return deliver(Record("mapped", figures, shown, complete=len(runs) == len(jobs), about=known), options)


def summary(run: MappedRun, plain: MappedRun) -> dict[str, Any]:
    """What the table shows of a run. plain: the one in memory, of as many tokens as fit."""
    told = {name: value for name, value in asdict(run).items() if name not in ("steps_s", "curve", "answer")}
    compared = run.length == plain.length and run is not plain
    return told | {
        "tokens_per_s": run.length / run.prefill_s,
        "step_s": run.step_s,
        "grown_bytes": run.grown_bytes,
        "same": run.answer == plain.answer if compared else None,
    }


SAID = {None: "", True: "yes", False: "no"}
COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "prompt\ntokens": lambda row: f"{row['length']:,}",
    "prefill\ntokens/s": lambda row: f"{row['tokens_per_s']:,.0f}",
    "step\nms": lambda row: f"{1000 * row['step_s']:.1f}",
    "read\n%": lambda row: f"{100 * row['read_share']:.2f}",
    "units\nMiB": lambda row: f"{row['unit_bytes'] / MIB:,.1f}",
    "files\nMiB": lambda row: f"{row['disk_bytes'] / MIB:,.1f}",
    "held\nMiB": lambda row: f"{row['total_bytes'] / MIB:,.1f}",
    "before\nMiB": lambda row: f"{row['before_bytes'] / MIB:,.1f}",
    "prefill\nMiB": lambda row: f"{row['prefill_bytes'] / MIB:,.1f}",
    "decode\nMiB": lambda row: f"{row['decode_bytes'] / MIB:,.1f}",
    "grown\nMiB": lambda row: f"{row['grown_bytes'] / MIB:,.1f}",
    "the same\nanswer": lambda row: SAID[row["same"]],
}
CAPTION = (
    "read: of the units that full attention reads in decode steps; units: at the end; held: the most of units in "
    "memory and all beside them, as counted; before, prefill, decode: resident memory of the process, its own and that "
    "of files (RssAnon + RssFile), after a short prompt and at most, looked at ten times a second; grown: from the "
    "first to the highest of these; the same answer: all logits, to the bit, as in memory"
)


def _table(rows: Sequence[dict[str, Any]], model: str) -> Table:
    table = new_table(model, CAPTION)
    table.add_column("plan", overflow="fold", min_width=17)
    for heading in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row["plan"], *(show(row) for show in COLUMNS.values()))
    return table
