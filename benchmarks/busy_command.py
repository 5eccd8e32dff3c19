"""`python -m benchmarks busy`: what another process at work on the machine makes of the time per token."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

import torch
from rich.table import Table

from benchmarks.busy import ARMS, BusyRow, Turn, measure_busy, summarise_busy
from benchmarks.commands.models import Busy
from benchmarks.record import Record, about
from benchmarks.source import Source, load_checked
from winnow import Plan
from winnow.cli.deliver import deliver
from winnow.cli.terminal import Meter, interruptible, new_table
from winnow.errors import InputError


def busy(options: Busy) -> int:
    """Time decode steps; returns the exit code."""
    llm = load_checked(Source(options), [Plan()], options.length + options.new)
    if llm.decoder.threads is None or (threads := torch.get_num_threads()) == 1:
        raise InputError("threads are watched on a CPU with Numba and at least 2 of them; give --threads 2 or more")
    turns, total = list[Turn](), 2 * len(ARMS) * options.repeats
    settings = {name: getattr(options, name) for name in ("length", "new", "repeats", "processes")}
    with Meter(f"{total} decodes", total) as meter, interruptible():
        for taken in measure_busy(llm, **settings, progress=meter.advance):
            turns += taken
            meter.note(f"turn {len(turns) // (2 * len(ARMS))} of {options.repeats}: done")
    rows = summarise_busy(turns) if turns else []
    figures = {**settings, "summary": [asdict(row) for row in rows], "records": [asdict(turn) for turn in turns]}
    name = options.model_name
    shown = (
        _table(rows, f"{name} after {options.length:,} tokens, {threads} threads") if rows else "no turn was finished"
    )
    return deliver(Record("busy", figures, shown, None, len(turns) == total, about(llm, name)), options)


def _milliseconds(seconds: float, spread: float) -> str:
    return f"{1000 * seconds:.1f} ± {1000 * spread:.1f}"


COLUMNS: dict[str, Callable[[BusyRow], str]] = {
    "quiet\nms": lambda row: _milliseconds(row.quiet_s, row.quiet_spread_s),
    "of all\nx": lambda row: f"{row.quiet_of_all:.3f}",
    "fewer\n%": lambda row: f"{100 * row.fewer_quiet:.0f}",
    "busy\nms": lambda row: _milliseconds(row.busy_s, row.busy_spread_s),
    "of all\nquiet\nx": lambda row: f"{row.slowdown:.2f}",
    "fewer\nbusy\n%": lambda row: f"{100 * row.fewer_busy:.0f}",
}
CAPTION = (
    "a decode step, mean of a turn, median of the turns ± half their range; x: of all threads on a quiet machine, in "
    "the same turn; fewer: steps on fewer threads"
)


def _table(rows: Sequence[BusyRow], title: str) -> Table:
    table = new_table(title, CAPTION)
    table.add_column("kernels on")
    for heading in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.arm, *(show(row) for show in COLUMNS.values()))
    return table
