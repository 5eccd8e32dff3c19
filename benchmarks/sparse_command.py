"""`python -m benchmarks sparse`: prefill that skips what rows of a prompt read, against full attention in turns."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

import torch
from rich.table import Table

from benchmarks.commands.engine import Sparse
from benchmarks.document import ids_of
from benchmarks.record import Record, about
from benchmarks.source import load_checked
from benchmarks.sparse import PLANS, Skipped, SparseRow, measure_sparse, summarise_sparse
from benchmarks.sparse_plot import plot_sparse
from benchmarks.tables import length_table
from winnow.cli.deliver import deliver
from winnow.cli.inputs import parse_plans
from winnow.cli.terminal import Meter, interruptible
from winnow.errors import InputError
from winnow.evaluation.compare import with_full


def sparse(options: Sparse) -> int:
    """Time prefills; returns the exit code."""
    lengths, tail = sorted(set(options.length)), options.tail if options.shape is None else 0
    if options.shape is not None and options.plot is not None:
        raise InputError(
            "--plot draws how far plans are from full attention, which random weights do not tell; leave it out"
        )
    plans = with_full(parse_plans(options.plan, PLANS))
    if options.plot is not None and len(plans) == 1:
        raise InputError("--plot draws how far plans are from full attention; give one with --plan")
    llm = load_checked(options.source(), plans, lengths[-1] + tail)
    ids = ids_of(llm, options.text, options.shape, lengths[-1] + tail)
    settings = {"tail": tail, "repeats": options.repeats}
    name = options.shape or options.model_name
    measured: list[Skipped] = []
    with Meter("sparse", len(plans) * (options.repeats + 1) * sum(lengths)) as meter, interruptible():
        for found in measure_sparse(llm, plans, ids, lengths, **settings, progress=meter.advance):
            measured += found
            meter.note(f"{found[0].length:,} tokens: done")
    rows = summarise_sparse(measured)
    figures = {**settings, "summary": list(map(asdict, rows)), "records": list(map(asdict, measured))}
    draw = partial(plot_sparse, rows=rows, title=name) if rows else None
    shown = _shown(rows, f"{name}, {torch.get_num_threads()} threads") if rows else "no length was finished"
    complete = len(measured) == len(plans) * len(lengths)
    return deliver(Record("sparse", figures, shown, draw, complete, about(llm, name)), options)


def _or_none(value: float | None, spell: Callable[[float], str]) -> str:
    return "-" if value is None else spell(value)


COLUMNS: dict[str, Callable[[SparseRow], str]] = {
    "median\ns": lambda row: f"{row.median_s:.2f}",
    "least\ns": lambda row: f"{row.min_s:.2f}",
    "faster\nx": lambda row: f"{row.speedup:.2f}",
    "range\nx": lambda row: f"{row.speedup_low:.2f}-{row.speedup_high:.2f}",
    "pairs\n%": lambda row: _or_none(row.pairs, lambda share: f"{100 * share:.1f}"),
    "KL": lambda row: _or_none(row.kl, lambda kl: f"{kl:.4f}"),
    "KL\nmost": lambda row: _or_none(row.kl_most, lambda kl: f"{kl:.3f}"),
}
CAPTION = (
    "a prefill, of all turns; faster: full attention's time over the plan's in the same turn, the median turn's, the "
    "least and the most; pairs: of a query and a key, read where the plan chooses; KL: of full attention's next "
    "token to the plan's, along the text after the prompt, the mean and the most"
)


def _shown(rows: Sequence[SparseRow], title: str) -> Table:
    """A section per length, a row per plan."""
    return length_table(rows, COLUMNS, title, CAPTION, "prompt")
