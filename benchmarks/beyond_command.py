"""`python -m benchmarks beyond`: needles in prompts longer than the model has positions."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

import torch
from rich.table import Table

from benchmarks.beyond import DEPTHS, PLANS, BeyondRow, measure_beyond, summarise_beyond
from benchmarks.commands.models import Beyond
from benchmarks.record import Record, about
from benchmarks.resident import gauge_of
from benchmarks.tables import MIB, length_table
from winnow.cli.deliver import deliver
from winnow.cli.inputs import make_tasks, parse_plans
from winnow.cli.terminal import collect


def beyond(options: Beyond) -> int:
    """Ask for needles; returns the exit code."""
    [task], plans = make_tasks([options.task], None, None), parse_plans(options.plan, PLANS)
    times, llm = sorted(set(options.times)), options.load()
    positions, gauge = llm.decoder.shape.max_positions, gauge_of(llm.device)
    wanted = options.examples * len(DEPTHS) * len(plans)
    ask = partial(measure_beyond, llm, plans, task, times, options.examples, gauge, seed=options.seed)
    answers = collect("asking", wanted * positions * sum(times), f"{wanted * len(times)} answers", ask, len(plans))
    rows = summarise_beyond(answers, positions)
    figures = {
        "summary": [asdict(row) for row in rows],
        "records": [{**each.record.to_dict(), "peak_bytes": each.peak_bytes} for each in answers],
    }
    shown = _shown(
        rows, f"{options.model_name}, {task.name}, {positions:,} positions, {torch.get_num_threads()} threads"
    )
    settings = {"task": task.name, "positions": positions, "seed": options.seed, "memory": gauge.name}
    complete = len(answers) == wanted * len(times)
    known = about(llm, options.model_name, **settings)
    return deliver(Record("beyond", figures, shown if rows else "no answer", complete=complete, about=known), options)


COLUMNS: dict[str, Callable[[BeyondRow], str]] = {
    "positions\nx": lambda row: f"{row.times:.0f}",
    "answers": lambda row: str(row.examples),
    "found\n%": lambda row: f"{100 * row.score:.0f}",
    "95 %": lambda row: f"{100 * row.low:.0f}-{100 * row.high:.0f}",
    "by depth\n%": lambda row: " ".join(f"{100 * each:.0f}" for each in row.by_depth.values()),
    "pairs\n%": lambda row: "-" if row.pairs is None else f"{100 * row.pairs:.1f}",
    "units\n%": lambda row: f"{100 * row.units:.1f}",
    "TTFT\ns": lambda row: f"{row.ttft_s:.1f}",
    "held\nMiB": lambda row: f"{row.total_bytes / MIB:.1f}",
    "beside\nMiB": lambda row: f"{row.aux_bytes / MIB:.1f}",
    "files\nMiB": lambda row: f"{row.disk_bytes / MIB:.1f}",
    "peak\nMiB": lambda row: f"{row.peak_bytes / MIB:.0f}",
}
CAPTION = (
    f"by depth: of the needle, {', '.join(map(str, DEPTHS))} of the text; pairs, units: read, of what full attention "
    "reads, by rows of the prompt and by decode steps; held: the most of units in memory and all beside them; files: "
    "of units; peak: of the process, weights included"
)


def _shown(rows: Sequence[BeyondRow], title: str) -> Table:
    """A section per length, a row per plan."""
    return length_table(rows, COLUMNS, title, CAPTION, "prompt")
