"""`python -m benchmarks memory`: what long prompts cost in memory and tokens per second, plan beside plan."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rich.console import Group, RenderableType

from benchmarks.commands.models import Memory
from benchmarks.memory import STEPS, LeftOut, MemoryRow, MemoryRun, measure_memory, runnable, summarise_memory
from benchmarks.record import Record, about
from benchmarks.source import Source
from benchmarks.speed_plots import plot_memory
from benchmarks.tables import MIB
from winnow.cli.deliver import deliver
from winnow.cli.inputs import parse_plans, refuse
from winnow.cli.terminal import collect, new_table
from winnow.errors import InputError
from winnow.evaluation.compare import with_full

PLANS = ("random_heads(budget=1024, chunk=512)",)


def memory(options: Memory) -> int:
    """Measure every plan at every length; returns the exit code."""
    plans, lengths = with_full(parse_plans(options.plan, PLANS)), sorted(set(options.length))
    if options.shape is not None:
        refuse("is the model itself, and --shape asks for random weights; give one of them", {"--model": options.model})
    name, repeats = options.shape or options.model_name, options.repeats
    source = Source(replace(options, model=options.model_name), options.shape, lengths[-1] + STEPS)
    llm = source.load()
    jobs, left = runnable(llm, plans, lengths, full_up_to=options.full_up_to)
    settings = about(llm, name, plans=[str(plan) for plan in plans], repeats=repeats, full_up_to=options.full_up_to)
    del llm  # every process has its own
    if not jobs:
        raise InputError(f"nothing is left to run: {left[0].plan} at {left[0].length} tokens is {left[0].reason}")
    wanted, total = repeats * len(jobs), repeats * sum(tokens for _, tokens in jobs)
    done = collect("measuring", total, f"{wanted} runs", partial(measure_memory, source, jobs, repeats=repeats))
    runs = [each for each in done if isinstance(each, MemoryRun)]
    left += [each for each in done if isinstance(each, LeftOut)]
    rows = summarise_memory(runs)
    figures: dict[str, Any] = {
        "summary": [row.to_dict() for row in rows],
        "left_out": [each.to_dict() for each in left],
        "records": [run.to_dict() for run in runs],
        "steps": STEPS,
    }
    shown = memory_table(rows, left, runs[0].memory, name) if runs else "no run was finished"
    draw = partial(plot_memory, rows=rows) if rows else None
    return deliver(Record("memory", figures, shown, draw, len(done) == wanted, settings), options)


COLUMNS = {
    "prompt\ntokens": lambda row: f"{row.length:,}",
    "TTFT\ns": lambda row: f"{row.ttft_s:.2f}",
    "tokens\n/s": lambda row: f"{row.tokens_per_s:,.0f}",
    "step\nms": lambda row: f"{1000 * row.step_s:.1f}",
    "units\nMiB": lambda row: f"{row.cache_bytes / MIB:.2f}",
    "peak\nunits\nMiB": lambda row: f"{row.peak_cache_bytes / MIB:.2f}",
    "peak\n/bound": lambda row: "-" if row.bound_bytes is None else f"{row.peak_cache_bytes / row.bound_bytes:.3f}",
    "slabs\nMiB": lambda row: f"{row.allocated_bytes / MIB:.2f}",
    "beside\nMiB": lambda row: f"{row.aux_bytes / MIB:.2f}",
    "held\nMiB": lambda row: f"{row.total_bytes / MIB:.2f}",
    "before\nMiB": lambda row: f"{row.before_bytes / MIB:.1f}",
    "peak\nMiB": lambda row: f"{row.peak_bytes / MIB:.1f}",
    "growth\nx": lambda row: f"{row.growth:.3f}",
}
CAPTION = (
    "step: one decode step; bound: the closed formula of the keep policy; slabs: reserved for units at the end; "
    "beside: the most stored besides them; held: the most of units and of that at once; before, peak: "
    "{memory}, with the model loaded, and at most during the prompt and "
    f"{STEPS} decode steps; growth: of that peak, over the plan's shortest prompt"
)


def memory_table(rows: Sequence[MemoryRow], left: Sequence[LeftOut], memory: str, model: str) -> RenderableType:
    """A section per plan, a row per length; below, why others are left out."""
    table = new_table(model, CAPTION.format(memory=memory))
    table.add_column("plan", overflow="fold", min_width=17)
    for heading in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    plans = dict.fromkeys([*(each.plan for each in left), *(row.plan for row in rows)])
    for plan in sorted(plans, key=lambda plan: plan != "full"):
        mine = {row.length: [show(row) for show in COLUMNS.values()] for row in rows if row.plan == plan}
        for each in left:
            if each.plan == plan:
                mine.setdefault(each.length, [f"{each.length:,}", *["-"] * (len(COLUMNS) - 1)])
        for index, length in enumerate(sorted(mine)):
            table.add_row("" if index else plan, *mine[length], end_section=index + 1 == len(mine))
    return Group(table, *(f"-: {each.plan} at {each.length:,} tokens: {each.reason}" for each in left))
