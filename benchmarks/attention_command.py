"""`python -m benchmarks attention`: what attention takes of a decode step, by how units are held."""

from collections.abc import Callable
from dataclasses import asdict

import torch

from benchmarks.attention import AttentionRow, Turn, measure_attention, summarise_attention
from benchmarks.commands.engine import Attention
from benchmarks.record import Record, about
from benchmarks.source import Source, load_checked
from benchmarks.tables import MIB, plan_table
from winnow.cli.deliver import deliver
from winnow.cli.inputs import parse_plans
from winnow.cli.terminal import Meter, interruptible
from winnow.errors import InputError
from winnow.evaluation.compare import with_full

PLANS = tuple(f"quantized(bits={bits})" for bits in (8, 4, 2))


def attention(options: Attention) -> int:
    """Time decode steps over many units and over next to none; returns the exit code."""
    plans = with_full(parse_plans(options.plan, PLANS))
    if chosen := [str(plan) for plan in plans if not plan.read.identity]:
        raise InputError(f"{chosen[0]} reads a part of its units; this compares ways of holding those that are read")
    held = options.of_model(device=options.device, weights=options.weights)
    llm = load_checked(Source(held, options.shape), plans, options.length + options.repeats * options.steps)
    settings = {name: getattr(options, name) for name in ("length", "steps", "repeats")}
    turns, nbytes = list[Turn](), dict[str, int]()
    with Meter("attention", options.repeats) as meter, interruptible():
        for turn in measure_attention(llm, plans, **settings, held=nbytes, progress=meter.advance):
            turns.append(turn)
    rows = summarise_attention(turns, nbytes) if turns else []
    figures = {
        **settings,
        "weights": options.weights,
        "summary": [asdict(row) for row in rows],
        "records": [asdict(turn) for turn in turns],
    }
    title = f"{options.shape}, {options.weights}, {options.length:,} tokens cached, {torch.get_num_threads()} threads"
    shown = plan_table(rows, COLUMNS, title, CAPTION) if rows else "no turn was finished"
    complete = len(turns) == options.repeats
    return deliver(Record("attention", figures, shown, complete=complete, about=about(llm, options.shape)), options)


COLUMNS: dict[str, Callable[[AttentionRow], str]] = {
    "step\nms": lambda row: f"{1000 * row.step_s:.1f}",
    "of full\nx": lambda row: f"{row.step_x:.2f}",
    "attention\nms": lambda row: f"{1000 * row.attention_s:.1f}",
    "of full's\nx": lambda row: f"{row.attention_x:.2f}",
    "range\nx": lambda row: f"{row.attention_low:.2f}-{row.attention_high:.2f}",
    "units\nMiB": lambda row: f"{row.units_bytes / MIB:,.0f}",
    "read\nGB/s": lambda row: f"{row.gb_s:.1f}",
    "of the\nmachine's": lambda row: f"{row.of_rate:.2f}",
}
CAPTION = (
    "medians of the turns; attention: a step less the same step over two units; of full, of full's: within a turn; "
    "read: the units' bytes in attention's time, and that over what this machine reads in a sum"
)
