"""The commands of `winnow bench` that look inside: token usage, attention sparsity, and schedules by closed formula."""

from typing import Annotated

import typer

from winnow.bench.evaluate import environment
from winnow.bench.sparsity import MASSES, Profile, check_masses, mean_profiles, token_shares
from winnow.bench.sparsity import sparsity as measure_sparsity
from winnow.bench.usage import Generation, stages, still_running
from winnow.bench.usage import usage as measure_usage
from winnow.cli import options
from winnow.cli.bench_plot import plot_sparsity, plot_usage
from winnow.cli.bench_view import (
    Found,
    Length,
    deliver,
    parse_numbers,
    schedule_table,
    sparsity_table,
    usage_table,
)
from winnow.cli.inputs import check_outputs, load_model, make_tasks, parse_plans
from winnow.cli.terminal import Meter, console, interruptible, print_json, write_json
from winnow.errors import InputError
from winnow.policies.compute.schedule import flops as operations
from winnow.policies.compute.schedule import propose, rows_per_layer

MaxTokens = Annotated[int | None, typer.Option(min=1, help="The longest answer.  [default: the task's own limit]")]
Masses = Annotated[
    str | None,
    typer.Option(
        "--mass", help=f"Shares of the attention, separated by commas.  [default: {','.join(f'{m:g}' for m in MASSES)}]"
    ),
]
Speedup = Annotated[float | None, typer.Option(help="Compute 1/SPEEDUP of the layer-token rows in prefill.")]
Rows = Annotated[float | None, typer.Option(help="Compute at most this share of the layer-token rows in prefill.")]
Flops = Annotated[float | None, typer.Option(help="Spend at most this share of the operations of prefill.")]


def usage(
    plan: options.Plan = "lazyllm",
    task: options.Tasks = None,
    length: Length = 4096,
    examples: options.Examples = None,
    max_tokens: MaxTokens = None,
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
    """Share of the prompt that each stage of layers has computed, step by step of a generation."""
    [chosen] = parse_plans([plan])
    check_outputs(out, plot)
    tasks = make_tasks(task or options.TASKS, data, haystack)
    llm = load_model(model, device, dtype, threads, prefill_chunk, weights=weights)
    model = options.named(model)
    answers = (examples or options.EXAMPLES) * len(tasks)
    done: list[Generation] = []
    with Meter("watching", answers * length) as meter, interruptible():
        for each in measure_usage(
            llm, chosen, tasks, length, answers // len(tasks), max_tokens=max_tokens, seed=seed, progress=meter.advance
        ):
            done.append(each)
            meter.note(f"{len(done)} of {answers} answers")
    made, running = (stages(done), still_running(done)) if done else ([], [])
    figures = {"plan": str(chosen), "stages": [stage.to_dict() for stage in made], "running": running}
    found = Found(
        "usage",
        len(done) == answers,
        {**figures, "records": [each.to_dict() for each in done]},
        usage_table(made, running, f"{model}, {length:,} prompt tokens, {chosen}: prompt tokens computed, %"),
        (lambda path: plot_usage(path, made, str(chosen))) if done else None,
    )
    deliver(found, {**environment(llm, model), "seed": seed, "length": length}, as_json, out, plot)


def sparsity(
    task: options.Tasks = None,
    length: Length = 4096,
    examples: options.Examples = None,
    mass: Masses = None,
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
    """How few prompt tokens hold the attention of the last one, layer by layer, under full attention."""
    masses = parse_numbers("--mass", mass, float) if mass else list(MASSES)
    check_masses(masses)
    check_outputs(out, plot)
    tasks = make_tasks(task or options.TASKS, data, haystack)
    llm = load_model(model, device, dtype, threads, prefill_chunk, weights=weights)
    model = options.named(model)
    prompts = (examples or options.EXAMPLES) * len(tasks)
    done: list[list[Profile]] = []
    with Meter("measuring attention", prompts * length) as meter, interruptible():
        for each in measure_sparsity(
            llm, tasks, length, prompts // len(tasks), masses=masses, seed=seed, progress=meter.advance
        ):
            done.append(each)
            meter.note(f"{len(done)} of {prompts} prompts")
    made = mean_profiles(done) if done else []
    shares = token_shares(length)
    found = Found(
        "sparsity",
        len(done) == prompts,
        {"prompts": len(done), "token_shares": shares, "layers": [profile.to_dict() for profile in made]},
        sparsity_table(made, f"{model}, {length:,} prompt tokens, {len(done)} prompts: tokens that hold the attention"),
        (lambda path: plot_sparsity(path, made, shares)) if made else None,
    )
    deliver(found, {**environment(llm, model), "seed": seed, "length": length}, as_json, out, plot)


def schedule(
    length: Length = 4096,
    speedup: Speedup = None,
    rows: Rows = None,
    flops: Flops = None,
    model: options.Model = None,
    as_json: options.Json = False,
    out: options.Out = None,
) -> None:
    """Propose a LazyLLM plan for a wanted cost of prefill, with its cost per layer; counted, nothing is run."""
    if sum(wanted is not None for wanted in (speedup, rows, flops)) != 1:
        raise InputError("give one of --speedup, --rows and --flops")
    check_outputs(out, None)
    shape = load_model(model, "cpu", None, None, None).decoder.shape
    found = propose(shape, length, rows=rows, flops=flops, speedup=speedup)
    whole = operations([length], shape)
    per_layer = [
        {"layer": layer, "rows": count, "rows_share": count / length, "flops_share": operations([count], shape) / whole}
        for layer, count in enumerate(rows_per_layer(length, shape.layers, found.layers, found.keep))
    ]
    document = {
        "command": "bench schedule",
        "model": options.named(model),
        "length": length,
        "plan": found.plan,
        "rows": found.rows,
    }
    document |= {"flops": found.flops, "layers": per_layer}
    if out is not None:
        write_json(out, document)
    if as_json:
        print_json(document)
    else:
        console().print(schedule_table(document))
