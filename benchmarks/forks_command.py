"""`python -m benchmarks forks`: memory of many samples of one prompt."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial

from rich.table import Table

from benchmarks.commands.engine import Forks
from benchmarks.document import document_ids
from benchmarks.forks import ForksRun, measure_forks, summarise_forks
from benchmarks.record import Record, about
from benchmarks.source import Source, load_checked
from benchmarks.tables import MIB
from winnow.cli.deliver import deliver
from winnow.cli.inputs import parse_plan
from winnow.cli.terminal import collect, new_table


def forks(options: Forks) -> int:
    """Measure each count of samples in a process of its own; returns the exit code."""
    plan, counts = parse_plan(options.plan), list(dict.fromkeys(options.samples))
    name = options.model_name
    source = Source(replace(options, model=name))
    llm = load_checked(source, [plan], options.length + options.steps + 1)
    ids, known = document_ids(llm, options.text, options.length), about(llm, name, plan=str(plan))
    del llm  # every process has its own
    settings = {each: getattr(options, each) for each in ("length", "steps", "repeats")}
    wanted = options.repeats * len(counts)
    total = wanted * (options.length + options.steps)
    measure = partial(measure_forks, source, plan, ids, counts, steps=options.steps, repeats=options.repeats)
    runs = collect("measuring", total, f"{wanted} processes", measure)
    rows = summarise_forks(runs)
    figures = {
        **settings,
        "summary": [{**asdict(row), "grown_bytes": row.grown_bytes} for row in rows],
        "records": [asdict(run) for run in runs],
    }
    title = f"{name}: {options.length:,} prompt tokens, {options.steps} more of each sample"
    shown = _table(rows, title) if rows else "no process was finished"
    return deliver(Record("forks", figures, shown, complete=len(runs) == wanted, about=known), options)


COLUMNS: dict[str, Callable[[ForksRun], str]] = {
    "samples": lambda run: f"{run.samples:,}",
    "by formula\nMiB": lambda run: f"{run.reserved_bytes / MIB:,.1f}",
    "if apart\nMiB": lambda run: f"{run.apart_bytes / MIB:,.1f}",
    "grown by\nMiB": lambda run: f"{run.grown_bytes / MIB:,.1f}",
    "before\nMiB": lambda run: f"{run.before_bytes / MIB:,.1f}",
    "after the\nprompt\nMiB": lambda run: f"{run.prompt_bytes / MIB:,.1f}",
    "after all\nMiB": lambda run: f"{run.after_bytes / MIB:,.1f}",
}
CAPTION = (
    "by formula: the most that the samples can come to hold, what they share counted once; if apart: if they shared "
    "nothing; grown by: {memory}, from a short prompt done to all tokens of all samples there"
)


def _table(rows: Sequence[ForksRun], title: str) -> Table:
    table = new_table(title, CAPTION.format(memory=rows[0].memory))
    for heading in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(show(row) for show in COLUMNS.values()))
    return table
