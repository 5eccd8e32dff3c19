"""`winnow run`: continue one prompt."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from winnow.bench.evaluate import environment
from winnow.cli import options
from winnow.cli.inputs import fitted_ids, load_model, parse_plan, read_prompt
from winnow.cli.inspect_model import report_of, weights_line
from winnow.cli.terminal import Meter, console, interruptible, new_table, print_json
from winnow.runtime.generate import Completion
from winnow.runtime.sampling import SamplingParams
from winnow.stats import Stats

PromptText = Annotated[str | None, typer.Argument(metavar="[PROMPT]", help="Or --file, or standard input.")]
PromptFile = Annotated[Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read the prompt from a file.")]
Question = Annotated[str | None, typer.Option("--question", "-q", help="Put after the prompt and a blank line.")]
Chat = Annotated[
    bool | None, typer.Option("--chat/--no-chat", help="Use the chat template.  [default: if there is one]")
]


def run(
    prompt: PromptText = None,
    file: PromptFile = None,
    question: Question = None,
    model: options.Model = None,
    adapter: options.Adapter = None,
    plan: options.OwnPlan = None,
    max_tokens: Annotated[int, typer.Option(help="The most new tokens.")] = SamplingParams.max_tokens,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = SamplingParams.temperature,
    top_k: Annotated[int, typer.Option(help="0 is off.")] = SamplingParams.top_k,
    top_p: Annotated[float, typer.Option(help="1 is off.")] = SamplingParams.top_p,
    min_p: Annotated[float, typer.Option(help="0 is off.")] = SamplingParams.min_p,
    repetition_penalty: Annotated[float, typer.Option(help="1 is off.")] = SamplingParams.repetition_penalty,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; repeatable.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the sampling.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the model's stop tokens.")] = False,
    chat: Chat = None,
    truncate: options.Truncate = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    weights: options.Weights = "auto",
    prefill_chunk: options.PrefillChunk = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print what it cost, on standard error.")] = False,
    as_json: options.Json = False,
) -> None:
    """Continue a prompt; the text appears as it is made."""
    asked = read_prompt(prompt, file, question)
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        stop=stop or (),
        seed=seed,
        ignore_eos=ignore_eos,
    )
    wanted = None if plan is None else parse_plan(plan)
    llm = load_model(model, device, dtype, threads, prefill_chunk, adapter, weights)
    model = options.named(model)
    chosen = wanted or llm.plan
    ids = fitted_ids(llm, asked, chat, truncate, params.max_tokens, [chosen])
    ended: list[Completion] = []
    pieces: list[str] = []
    with Meter("reading the prompt", len(ids)) as meter, interruptible():
        for piece in llm.stream(ids, params, plan=chosen, progress=meter.advance, on_finish=ended.append):
            meter.stop()
            pieces.append(piece)
            if not as_json:
                print(piece, end="", flush=True)
    if as_json:
        about = {"plan": str(chosen), **environment(llm, model), "adapter": adapter}
        print_json({**_record(pieces, ended[0] if ended else None), **about, "seed": seed})
    else:
        print()
    if stats and ended:
        console(stderr=True).print(stats_table(ended[0].stats, str(chosen)))
        console(stderr=True).print(weights_line(report_of(llm)))
    if not ended:
        print("interrupted", file=sys.stderr)
        raise typer.Exit(130)


def stats_table(stats: Stats, plan: str) -> Table:
    """Every figure of a run."""
    table = new_table(plan)
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in stats.to_dict().items():
        table.add_row(name, f"{value:.4f}" if isinstance(value, float) else f"{value:,}")
    return table


def _record(pieces: list[str], completion: Completion | None) -> dict[str, Any]:
    """What was generated; of an interrupted run only the text is known."""
    return {
        "text": completion.text if completion else "".join(pieces),
        "token_ids": completion.token_ids if completion else None,
        "finish_reason": completion.finish_reason if completion else None,
        "complete": completion is not None,
        "stats": completion.stats.to_dict() if completion else None,
    }
