"""`python -m benchmarks decoding`: whole decodes after many cached tokens, with slow steps and fast ones told apart."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from rich.console import Group, RenderableType

from benchmarks.commands.speed import Decoding as Options
from benchmarks.decoding import Decoding, measure_decoding, turns_of
from benchmarks.record import Record as Delivered
from benchmarks.record import about
from benchmarks.shapes import shape_named
from benchmarks.speed import machine_rates, typical
from benchmarks.speed_plots import plot_decoding
from winnow.cli.deliver import deliver
from winnow.cli.inputs import parse_plans
from winnow.cli.terminal import Meter, interruptible, new_table
from winnow.evaluation.compare import with_full

PLANS = ("slowfast(budget=1536, sink=4, recent=256, trigger='periodic', interval=24)",)

Record = dict[str, Any]


def decoding(options: Options) -> int:
    """Time decodes; returns the exit code."""
    plans = with_full(parse_plans(options.plan, PLANS))
    lengths, batches = sorted(set(options.length)), sorted(set(options.batch))
    llm, shape = options.load(plans, lengths[-1] + options.new + 1), shape_named(options.shape)
    samples, measured = [machine_rates(llm.dtype, llm.device)], list[Decoding]()
    counts = {"repeats": options.repeats, "stock_steps": options.stock_steps}
    total = turns_of(len(plans), len(lengths), len(batches), **counts)
    counts |= {"new": options.new, "full_steps": options.full_steps}
    with Meter(f"{total} decodes", total) as meter, interruptible():
        for found in measure_decoding(llm, shape, plans, lengths, batches, **counts, progress=meter.advance):
            measured += found
            samples.append(machine_rates(llm.dtype, llm.device))
            meter.note(f"{found[0].length:,} tokens: done")
    rates = typical(samples)
    others = {(each.plan, each.length, each.batch): each for each in measured}
    records = [each.to_dict(rates, others) for each in measured]
    figures = {"shape": options.shape, **counts, "rates": asdict(rates), "records": records}
    shown = _tables(records, f"{options.shape}, {options.new} tokens decoded", rates.copy_gb_s)
    complete = len({each.length for each in measured}) == len(lengths)
    draw = partial(plot_decoding, records=records) if records else None
    return deliver(Delivered("decoding", figures, shown, draw, complete, about(llm, options.shape)), options)


def _of(kind: str, figure: str, show: Callable[[float], str]) -> Callable[[Record], str]:
    """A figure of a record's fast or slow steps, where it has any."""
    return lambda record: "-" if record[kind] is None else show(record[kind][figure])


def _number(name: str, digits: int) -> Callable[[Record], str]:
    return lambda record: "-" if record[name] is None else f"{record[name]:.{digits}f}"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.4g}"


COLUMNS: dict[str, Callable[[Record], str]] = {
    "batch": lambda record: f"{record['batch']}",
    "TPOT\nms": lambda record: _milliseconds(record["tpot_s"]),
    "of\nfull\nx": _number("ratio_to_full", 3),
    "of\nstock\nx": _number("ratio_to_stock", 4),
    "tokens\n/s": lambda record: f"{record['tokens_per_s']:.1f}",
    "of\none\nx": _number("tokens_of_one", 2),
    "grown\nx": _number("growth", 2),
    "fast\nms": _of("fast", "seconds", _milliseconds),
    "units": _of("fast", "units", lambda units: f"{units:,.0f}"),
    "MB": _of("fast", "bytes", lambda size: f"{size / 1e6:,.0f}"),
    "GB/s": _of("fast", "gb_s", lambda rate: f"{rate:.1f}"),
    "of\ncopy\n%": _of("fast", "share_of_copy", lambda share: f"{100 * share:.0f}"),
    "slow\nms": _of("slow", "seconds", _milliseconds),
    "slow\nsteps": _of("slow", "count", lambda count: f"{count:g}"),
    "slow\nGB/s": _of("slow", "gb_s", lambda rate: f"{rate:.1f}"),
}
CAPTION = (
    "TPOT: mean over the steps; tokens/s: of the batch, and x of one sequence's; grown: TPOT over the shortest "
    "length's; fast, with what it reads, and slow: median steps, slow ones reading all units that are kept; copy: "
    "{copy:.1f} GB/s, read and written. Medians over the turns; the first, dense, step of each is not counted"
)


def _tables(records: Sequence[Record], title: str, copy_gb_s: float) -> RenderableType:
    """A table per length, a row per plan and batch."""
    tables = []
    for length in dict.fromkeys(record["length"] for record in records):
        table = new_table(f"{title} after {length:,}", CAPTION.format(copy=copy_gb_s))
        table.add_column("plan", overflow="fold", min_width=18)
        for heading in COLUMNS:
            table.add_column(heading, justify="right", no_wrap=True)
        for record in (record for record in records if record["length"] == length):
            table.add_row(record["plan"], *(show(record) for show in COLUMNS.values()))
        tables.append(table)
    return Group(*tables) if tables else "no length was finished"
