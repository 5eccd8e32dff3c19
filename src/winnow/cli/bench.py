"""`winnow bench`: speed, and what a schedule costs in time, operations and score."""

from typing import Annotated, Any

import typer

from winnow.bench.__main__ import decode_command, plot_command, prefill_command, table_command
from winnow.bench.compare import finished, with_full
from winnow.bench.depth import KEEP, cells, every_layer, grid
from winnow.bench.depth import depth as measure_depth
from winnow.bench.evaluate import Record, environment
from winnow.bench.sweep import Run, arms_of, finished_runs, summarise_sweep
from winnow.bench.sweep import sweep as run_sweep
from winnow.cli import options
from winnow.cli.bench_decoding import decoding
from winnow.cli.bench_fidelity import fidelity
from winnow.cli.bench_file import file
from winnow.cli.bench_generation import generation
from winnow.cli.bench_inside import schedule, sparsity, usage
from winnow.cli.bench_memory import memory
from winnow.cli.bench_peers import peers
from winnow.cli.bench_plot import Against, plot_depth, plot_sweep
from winnow.cli.bench_view import Found, Length, deliver, depth_table, parse_numbers, sweep_tables
from winnow.cli.inputs import check_outputs, load_model, make_tasks, parse_plans, refuse
from winnow.cli.terminal import Meter, interruptible

PLANS = ("lazyllm",)
SEEDS = 5  # the runs that the LazyLLM paper averages random drops over

app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command("decode")(decode_command)
app.command("prefill")(prefill_command)
app.command("table")(table_command)
app.command("plot")(plot_command)
app.command("decoding")(decoding)
app.command("fidelity")(fidelity)
app.command("generation")(generation)
app.command("memory")(memory)
app.command("peers")(peers)
app.command("file")(file)
app.command("usage")(usage)
app.command("sparsity")(sparsity)
app.command("schedule")(schedule)

Seeds = Annotated[int, typer.Option(min=1, help="Seeds that a plan with a seed is averaged over.")]
AgainstOption = Annotated[
    Against | None, typer.Option(help="What --plot draws the score against.  [default: ttft]", show_choices=True)
]
Layers = Annotated[str | None, typer.Option(help="Pruning layers, separated by commas.  [default: all that can be]")]
Keep = Annotated[
    str | None,
    typer.Option(help=f"Shares that go on, separated by commas.  [default: {','.join(f'{k:g}' for k in KEEP)}]"),
]


@app.callback(invoke_without_command=True)
def bench(context: typer.Context) -> None:
    """Measure: speed against stock transformers, and what compute policies save and cost."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def sweep(
    plan: options.Plans = None,
    task: options.Tasks = None,
    length: options.Lengths = None,
    examples: options.Examples = None,
    seeds: Seeds = SEEDS,
    against: AgainstOption = None,
    data: options.Data = None,
    haystack: options.Haystack = None,
    model: options.Model = None,
    adapter: options.Adapter = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    weights: options.Weights = "auto",
    prefill_chunk: options.PrefillChunk = None,
    as_json: options.Json = False,
    out: options.Out = None,
    plot: options.Plot = None,
) -> None:
    """Score, speed-up and work saved for many plans, next to full attention on the same prompts."""
    plans = with_full(parse_plans(plan, PLANS))
    check_outputs(out, plot)
    if plot is None:
        refuse("is about --plot only", {"--against": against})
    tasks, lengths = make_tasks(task or options.TASKS, data, haystack), list(dict.fromkeys(length or options.LENGTHS))
    llm = load_model(model, device, dtype, threads, prefill_chunk, adapter, weights)
    model = options.named(model)
    arms, count = arms_of(plans, seeds), examples or options.EXAMPLES
    answers = count * len(tasks) * len(lengths) * arms
    runs: list[Run] = []
    with Meter("sweeping", answers // len(lengths) * sum(lengths)) as meter, interruptible():
        for run in run_sweep(llm, plans, tasks, lengths, count, seeds=seeds, seed=seed, progress=meter.advance):
            runs.append(run)
            if len(runs) % arms == 0:
                meter.note(f"{len(runs)} of {answers} answers")
    rows = summarise_sweep(finished_runs(runs, arms))
    figures: dict[str, Any] = {"summary": [row.to_dict() for row in rows], "records": [run.to_dict() for run in runs]}
    figures |= {"plans": [str(each) for each in plans], "seeds": seeds}
    found = Found(
        "sweep",
        len(runs) == answers,
        figures,
        sweep_tables(rows, model),
        (lambda path: plot_sweep(path, rows, against or Against.ttft)) if rows else None,
    )
    deliver(found, {**environment(llm, model), "adapter": adapter, "seed": seed}, as_json, out, plot)


@app.command()
def depth(
    layers: Layers = None,
    keep: Keep = None,
    task: options.Tasks = None,
    length: Length = 4096,
    examples: options.Examples = None,
    data: options.Data = None,
    haystack: options.Haystack = None,
    model: options.Model = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    weights: options.Weights = "auto",
    prefill_chunk: options.PrefillChunk = None,
    as_json: options.Json = False,
    out: options.Out = None,
    plot: options.Plot = None,
) -> None:
    """Score with exactly one pruning layer, by its depth and by the share of the prompt that goes on there."""
    shares = parse_numbers("--keep", keep, float) if keep else list(KEEP)
    wanted = parse_numbers("--layers", layers, int) if layers else None
    grid(wanted or [1], shares)  # refuses what no model takes
    check_outputs(out, plot)
    tasks = make_tasks(task or options.TASKS, data, haystack)
    llm = load_model(model, device, dtype, threads, prefill_chunk, weights=weights)
    model = options.named(model)
    plans = grid(wanted or every_layer(llm.decoder.shape), shares)
    arms, count = len(with_full(list(plans.values()))), examples or options.EXAMPLES
    answers = arms * count * len(tasks)
    records: list[Record] = []
    with Meter("pruning once", answers * length) as meter, interruptible():
        for record in measure_depth(llm, plans, tasks, length, count, seed=seed, progress=meter.advance):
            records.append(record)
            meter.note(f"{len(records)} of {answers} answers")
    made = cells(finished(records, arms), plans)
    figures = {"cells": [cell.to_dict() for cell in made], "records": [record.to_dict() for record in records]}
    found = Found(
        "depth",
        len(records) == answers,
        figures,
        depth_table(made, f"{model}, {length:,} prompt tokens: score, %, with one pruning layer"),
        (lambda path: plot_depth(path, made)) if made else None,
    )
    deliver(found, {**environment(llm, model), "seed": seed, "length": length}, as_json, out, plot)
