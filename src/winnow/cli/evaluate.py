"""`winnow eval`: how well a plan answers, by task, length and depth; or how close it stays to full attention."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from winnow.bench.accuracy import Accuracy, accuracies
from winnow.bench.compare import finished
from winnow.bench.evaluate import Record, environment
from winnow.bench.evaluate import evaluate as evaluate_tasks
from winnow.bench.fidelity import Fidelity, Perplexity, fidelity, perplexity
from winnow.cli import evaluate_benchmark as published
from winnow.cli import evaluate_harness as harness
from winnow.cli import options
from winnow.cli.evaluate_view import accuracy_table, fidelity_table
from winnow.cli.inputs import check_outputs, load_model, make_tasks, parse_plans, prompt_ids, read_prompt, refuse
from winnow.cli.plot import plot_depths
from winnow.cli.terminal import Meter, console, interruptible, print_json, write_json
from winnow.errors import InputError
from winnow.plan import Plan
from winnow.runtime.llm import LLM
from winnow.tasks import Task

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)

DepthList = Annotated[
    list[float] | None,
    typer.Option("--depth", min=0, max=1, help="Where needles stand; repeatable.  [default: 0, 0.25, 0.5, 0.75, 1]"),
]
FidelityFile = Annotated[
    Path | None,
    typer.Option("--fidelity", metavar="FILE", help="Instead of tasks: divergence from full attention on this text."),
]
PerplexityFile = Annotated[
    Path | None, typer.Option("--perplexity", metavar="FILE", help="Instead of tasks: full attention's on this text.")
]
PromptTokens = Annotated[
    int | None, typer.Option(min=1, help="Of --fidelity: tokens prefilled, the others are fed.  [default: half]")
]
TextTokens = Annotated[
    int | None, typer.Option("--tokens", min=2, help="Of --fidelity, --perplexity: use the first so many.")
]


def evaluate(
    plan: options.Plans = None,
    task: options.Tasks = None,
    length: options.Lengths = None,
    depth: DepthList = None,
    examples: options.Examples = None,
    fidelity: FidelityFile = None,
    perplexity: PerplexityFile = None,
    prompt_tokens: PromptTokens = None,
    tokens: TextTokens = None,
    benchmark: published.Name = None,
    lm_tasks: harness.Names = None,
    limit: harness.Limit = None,
    num_fewshot: harness.NumFewshot = None,
    include_path: harness.IncludePath = None,
    metadata: harness.Metadata = None,
    apply_chat_template: harness.ChatTemplate = None,
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
    """Score plans on tasks, by depth, on lm_eval's tasks or on a benchmark; or measure fidelity or perplexity."""
    plans = parse_plans(plan)
    check_outputs(out, plot)
    asked = harness.read_options(lm_tasks, limit, num_fewshot, include_path, metadata, apply_chat_template)
    if asked is not None:
        others: dict[str, object] = {"--task": task, "--length": length, "--examples": examples, "--depth": depth}
        others |= {"--fidelity": fidelity, "--perplexity": perplexity, "--prompt-tokens": prompt_tokens}
        others |= {"--tokens": tokens, "--data": data, "--haystack": haystack, "--plot": plot}
        others["--benchmark"] = benchmark
        refuse("not with --tasks, which asks what lm_eval asks", others)
        llm = load_model(model, device, dtype, threads, prefill_chunk, adapter, weights)
        outcome = Outcome(*harness.run_harness(llm, plans or [llm.plan], asked, seed))
    elif benchmark is not None:
        unasked: dict[str, object] = {"--fidelity": fidelity, "--perplexity": perplexity, "--depth": depth}
        unasked |= {"--prompt-tokens": prompt_tokens, "--tokens": tokens, "--haystack": haystack, "--plot": plot}
        refuse("not with --benchmark, which asks what its files ask", unasked)
        questions = published.read_benchmark(benchmark, data, task or (), length or (), examples)
        llm = load_model(model, device, dtype, threads, prefill_chunk, adapter, weights)
        limit_tokens = next(iter(length or ()), None)
        outcome = Outcome(*published.run_benchmark(llm, plans or [llm.plan], questions, limit_tokens))
    elif (file := fidelity or perplexity) is None:
        refuse("about --fidelity and --perplexity only", {"--prompt-tokens": prompt_tokens, "--tokens": tokens})
        tasks = make_tasks(task or options.TASKS, data, haystack)
        llm = load_model(model, device, dtype, threads, prefill_chunk, adapter, weights)
        plans = plans or [llm.plan]
        lengths, depths = list(dict.fromkeys(length or options.LENGTHS)), list(dict.fromkeys(depth or DEPTHS))
        outcome = _score(llm, plans, tasks, lengths, depths, examples or options.EXAMPLES, seed)
    else:
        about_tasks: dict[str, object] = {"--task": task, "--length": length, "--examples": examples, "--depth": depth}
        about_tasks |= {"--data": data, "--haystack": haystack, "--plot": plot}
        refuse("about tasks, not about --fidelity or --perplexity", about_tasks)
        if perplexity:
            _check_perplexity(fidelity, plans, prompt_tokens)
        text = read_prompt(None, file, None).text
        llm = load_model(model, device, dtype, threads, prefill_chunk, adapter, weights)
        plans = plans or [llm.plan]
        ids = prompt_ids(llm, text, chat=False)[:tokens]
        outcome = _fidelity(llm, plans, ids, prompt_tokens or len(ids) // 2) if fidelity else _perplexity(llm, ids)
    model = options.named(model)
    document = {"command": "eval", "complete": outcome.complete, **outcome.figures}
    document |= {**environment(llm, model), "adapter": adapter, "seed": seed}
    if out is not None:
        write_json(out, document)
    if plot is not None and outcome.accuracies:
        plot_depths(plot, outcome.accuracies)
    if as_json:
        print_json(document)
    else:
        console().print(outcome.shown)
    if not outcome.complete:
        print("interrupted; this is what was finished", file=sys.stderr)
        raise typer.Exit(130)


@dataclass(frozen=True)
class Outcome:
    """What an evaluation came to: for JSON, for the screen, and for the plot."""

    complete: bool
    figures: dict[str, Any]
    shown: RenderableType
    accuracies: Sequence[Accuracy] = ()


def _check_perplexity(fidelity: Path | None, plans: list[Plan], prompt_tokens: int | None) -> None:
    refuse("is for --fidelity; --perplexity predicts every token after the first", {"--prompt-tokens": prompt_tokens})
    refuse("is given with --perplexity; it reports perplexities by itself", {"--fidelity": fidelity})
    if not all(plan.is_full for plan in plans):
        raise InputError("--perplexity is for full attention; use --fidelity for the perplexity of a plan")


def _score(
    llm: LLM,
    plans: list[Plan],
    tasks: list[Task],
    lengths: list[int],
    depths: list[float],
    examples: int,
    seed: int,
) -> Outcome:
    records: list[Record] = []
    each = examples * len(depths) * len(tasks) * len(plans)  # answers per length
    with Meter("evaluating", sum(lengths) * each) as meter, interruptible():
        for record in evaluate_tasks(
            llm, plans, tasks, lengths, examples, seed=seed, depths=depths, progress=meter.advance
        ):
            records.append(record)
            if len(records) % len(plans) == 0:
                meter.note(f"{len(records)} of {each * len(lengths)} answers")
    found = accuracies(finished(records, len(plans)), depths)
    figures = {"accuracy": [a.to_dict() for a in found], "records": [record.to_dict() for record in records]}
    return Outcome(len(records) == each * len(lengths), figures, accuracy_table(found, depths), found)


def _fidelity(llm: LLM, plans: list[Plan], ids: list[int], prompt_tokens: int) -> Outcome:
    found: list[Fidelity] = []
    with Meter("measuring fidelity", len(ids) * len(plans)) as meter, interruptible():
        for plan in plans:
            found.append(fidelity(llm, ids, plan, prompt_tokens, progress=meter.advance))
    return Outcome(len(found) == len(plans), {"fidelity": [f.to_dict() for f in found]}, fidelity_table(found))


def _perplexity(llm: LLM, ids: list[int]) -> Outcome:
    found: list[Perplexity] = []
    with Meter("measuring perplexity", len(ids)) as meter, interruptible():
        found.append(perplexity(llm, ids, progress=meter.advance))
    lines = [f"perplexity {math.exp(p.nll):.4f}, {p.nll:.4f} nats per token, {p.tokens} tokens" for p in found]
    return Outcome(bool(found), {"perplexity": [p.to_dict() for p in found]}, "\n".join(lines))
