"""`python -m benchmarks generation`: whole generations of a model of a known shape, next to full attention's."""

from typing import Any

from rich.table import Table

from benchmarks.commands.speed import Generation as Options
from benchmarks.generation import Generation, measure_generation
from benchmarks.record import Record, about
from benchmarks.shapes import shape_named
from benchmarks.tables import MIB
from winnow.cli.deliver import deliver
from winnow.cli.inputs import parse_plans
from winnow.cli.terminal import Meter, interruptible, new_table

PLANS = ("lazyllm(keep=1.0)", "lazyllm", "lazyllm(max_revive=0)")


def generation(options: Options) -> int:
    """Time generations; returns the exit code."""
    plans, length, new, repeats = parse_plans(options.plan, PLANS), options.length, options.new, options.repeats
    llm, shape = options.load(plans, length + new, options.prefill_chunk), shape_named(options.shape)
    measured: list[Generation] = []
    runs = (len(plans) + 1) * (repeats + 1)
    with interruptible(), Meter(f"{runs} generations", runs) as meter:
        measured = measure_generation(llm, shape, plans, length, new, repeats=repeats, progress=meter.advance)
    records = [each.to_dict(measured[0]) for each in measured]
    figures = {"shape": options.shape, "length": length, "new": new, "repeats": repeats, "records": records}
    shown = _table(records, f"{options.shape}, {length:,} prompt tokens, {new} new")
    settings = about(llm, options.shape)
    return deliver(Record("generation", figures, shown, complete=bool(records), about=settings), options)


def _table(records: list[dict[str, Any]], title: str) -> Table:
    """A row per plan; x: of full attention's, the median over turns."""
    table = new_table(title, "medians; x: of full attention's in the same turn; step: one decode step")
    table.add_column("plan", overflow="fold", min_width=20)
    for heading in (
        "rows\n%",
        "TTFT\ns",
        "\nx",
        "step\nms",
        "\nx",
        "all\ns",
        "\nx",
        "revived\nrows",
        "memory\nMiB",
        "of it\nbeside\nMiB",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for record in records:
        stats = record["stats"]
        table.add_row(
            record["plan"],
            f"{100 * stats['rows_computed'] / stats['rows_full']:.1f}",
            f"{record['ttft_s']:.2f}",
            f"{record['ttft_ratio']:.3f}",
            f"{1000 * record['step_s']:.1f}",
            f"{record['step_ratio']:.3f}",
            f"{record['total_s']:.2f}",
            f"{record['total_ratio']:.3f}",
            f"{stats['revived_rows']:,}",
            f"{stats['total_bytes'] / MIB:.0f}",
            f"{stats['aux_bytes'] / MIB:.0f}",
        )
    return table
