"""`winnow bench memory`: what long prompts cost in memory and tokens per second, plan beside plan."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType

from winnow.bench.compare import with_full
from winnow.bench.decode import CHUNK
from winnow.bench.evaluate import environment
from winnow.bench.memory import STEPS, LeftOut, MemoryRow, MemoryRun, measure_memory, runnable, summarise_memory
from winnow.bench.shapes import SHAPES
from winnow.bench.source import Source
from winnow.cli import options
from winnow.cli.bench_plot import plot_memory
from winnow.cli.bench_view import MIB, Found, deliver
from winnow.cli.inputs import check_outputs, parse_plans, refuse
from winnow.cli.terminal import Meter, interruptible, new_table
from winnow.errors import InputError

PLANS = ("random_heads(budget=1024, chunk=512)",)
LENGTHS = (4096, 16384, 65536, 131072)
FULL_UP_TO = 32768

ShapeName = Annotated[
    str | None,
    typer.Option(
        "--shape",
        help=f"Random weights instead of a model, with as many positions as it takes: {', '.join(SHAPES)}.",
    ),
]
Lengths = Annotated[
    list[int] | None,
    typer.Option(
        "--length",
        "-l",
        metavar="TOKENS",
        min=1,
        help=f"Prompt length; repeatable.  [default: {', '.join(map(str, LENGTHS))}]",
    ),
]
FullUpTo = Annotated[
    int, typer.Option(metavar="TOKENS", min=0, help="The longest prompt of full attention; its time grows as length².")
]
Repeats = Annotated[int, typer.Option(min=1, help="Runs of each plan and length; medians are shown.")]


def memory(
    plan: options.Plans = None,
    length: Lengths = None,
    full_up_to: FullUpTo = FULL_UP_TO,
    model: options.Model = None,
    shape: ShapeName = None,
    repeats: Repeats = 1,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    prefill_chunk: Annotated[int, typer.Option(min=1, help="Prompt tokens computed at a time.")] = CHUNK,
    as_json: options.Json = False,
    out: options.Out = None,
    plot: options.Plot = None,
) -> None:
    """Memory and tokens per second of long prompts, each in a process of its own, next to full attention's."""
    plans, lengths = with_full(parse_plans(plan, PLANS)), sorted(set(length or LENGTHS))
    check_outputs(out, plot)
    if shape is not None:
        refuse("is the model itself, and --shape asks for random weights instead; give one of them", {"--model": model})
    name = options.named(model)
    source = Source(name, shape, lengths[-1] + STEPS, device, dtype, threads, prefill_chunk)
    llm = source.load()
    jobs, left = runnable(llm, plans, lengths, full_up_to=full_up_to)
    about = environment(llm, shape or name)
    del llm  # every process has its own
    if not jobs:
        raise InputError(f"nothing is left to run: {left[0].plan} at {left[0].length} tokens is {left[0].reason}")
    runs: list[MemoryRun] = []
    wanted = repeats * len(jobs)
    with Meter("measuring", repeats * sum(tokens for _, tokens in jobs)) as meter, interruptible():
        for done in measure_memory(source, jobs, repeats=repeats, progress=meter.advance):
            if isinstance(done, LeftOut):
                left.append(done)
                wanted -= 1
            else:
                runs.append(done)
            meter.note(f"{len(runs)} of {wanted} runs")
    rows = summarise_memory(runs)
    figures: dict[str, Any] = {
        "summary": [row.to_dict() for row in rows],
        "left_out": [each.to_dict() for each in left],
        "records": [run.to_dict() for run in runs],
        "plans": [str(each) for each in plans],
        "steps": STEPS,
        "repeats": repeats,
        "full_up_to": full_up_to,
    }
    shown = memory_table(rows, left, runs[0].memory, shape or name) if runs else "no run was finished"
    draw = (lambda path: plot_memory(path, rows)) if rows else None
    deliver(Found("memory", len(runs) == wanted, figures, shown, draw), about, as_json, out, plot)


COLUMNS = {
    "prompt\ntokens": lambda row: f"{row.length:,}",
    "TTFT\ns": lambda row: f"{row.ttft_s:.2f}",
    "tokens\n/s": lambda row: f"{row.tokens_per_s:,.0f}",
    "step\nms": lambda row: f"{1000 * row.step_s:.1f}",
    "units\nMiB": lambda row: f"{row.cache_bytes / MIB:.2f}",
    "peak\nunits\nMiB": lambda row: f"{row.peak_cache_bytes / MIB:.2f}",
    "peak\n/bound": lambda row: "-" if row.bound_bytes is None else f"{row.peak_cache_bytes / row.bound_bytes:.3f}",
    "slabs\nMiB": lambda row: f"{row.allocated_bytes / MIB:.2f}",
    "aside\nMiB": lambda row: f"{row.aux_bytes / MIB:.2f}",
    "held\nMiB": lambda row: f"{row.total_bytes / MIB:.2f}",
    "before\nMiB": lambda row: f"{row.before_bytes / MIB:.1f}",
    "peak\nMiB": lambda row: f"{row.peak_bytes / MIB:.1f}",
    "growth\nx": lambda row: f"{row.growth:.3f}",
}
CAPTION = (
    "step: one decode step; bound: the closed formula of the keep policy; slabs: reserved for units at the end; aside: "
    "the most stored besides them; held: the most of units and of that at once; before, peak: "
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
