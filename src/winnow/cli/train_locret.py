"""`winnow train locret`: retaining heads for a model."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from winnow.cli import options
from winnow.cli.inputs import load_model
from winnow.cli.terminal import console, interruptible, new_table, print_json
from winnow.cli.training import Bar, Bf16, Data, LogEvery, NewDirectory, Resume, SaveEvery, interrupted
from winnow.learn.heads import HeadsReport, train_heads
from winnow.learn.heads_recipe import HeadsRecipe

CHUNK = 2048  # no gradient goes through the model, so a larger chunk than in prefill costs little memory


def locret(
    data: Data,
    out: NewDirectory,
    model: options.Model = None,
    adapter: options.Adapter = None,
    width: Annotated[int, typer.Option(help="Of the heads' hidden layer.")] = HeadsRecipe.width,
    steps: Annotated[int, typer.Option(help="One sample each; samples come again where there are fewer.")] = (
        HeadsRecipe.steps
    ),
    learning_rate: Annotated[float, typer.Option("--learning-rate", "--lr", help="At its height.")] = (
        HeadsRecipe.learning_rate
    ),
    length: Annotated[int, typer.Option(help="Tokens of a prompt that are learnt, the first ones.")] = (
        HeadsRecipe.length
    ),
    prefill_chunk: Annotated[int, typer.Option(min=1, help="Prompt tokens computed at a time.")] = CHUNK,
    seed: Annotated[int, typer.Option(help="Of new heads and of the order of the data.")] = HeadsRecipe.seed,
    bf16: Bf16 = False,
    save_every: SaveEvery = HeadsRecipe.save_every,
    log_every: LogEvery = HeadsRecipe.log_every,
    validation: Annotated[
        Path | None, typer.Option(metavar="DATA", help="More data, to measure on and not to learn from.")
    ] = None,
    validate_every: Annotated[int, typer.Option(help="Steps between measurements.")] = HeadsRecipe.validate_every,
    resume: Resume = False,
    device: options.Device = None,
    dtype: options.Dtype = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Train retaining heads for a model, which itself stays as it is: what `--plan locret` keeps units by."""
    recipe = HeadsRecipe(
        width=width,
        steps=steps,
        learning_rate=learning_rate,
        length=length,
        seed=seed,
        bf16=bf16,
        save_every=save_every,
        log_every=log_every,
        validate_every=validate_every,
    )
    llm = load_model(model, device, dtype, threads, prefill_chunk, adapter)
    made: HeadsReport | None = None
    with ExitStack() as stack, interruptible():
        bar = Bar(stack)
        made = train_heads(
            llm,
            data,
            out,
            recipe,
            validation=validation,
            resume=resume,
            progress=lambda at: bar.show(at.step, at.steps, at.tokens, {"loss": at.loss, "overlap": at.overlap}),
        )
    if made is None:
        interrupted(out)
    if as_json:
        print_json({"command": "train locret", **made.record, "out": str(out), "files": made.files})
        return
    console().print(_table(made, out))
    console().print(f"use them: --plan \"locret(budget=1024, heads='{out}')\"")


def _table(made: HeadsReport, out: Path) -> Table:
    """What was made, from what, at what cost."""
    result, data = made.record["result"], made.record["data"]
    left = "".join(
        f", {data[name]:,} left out as too {name.removeprefix('too_')}"
        for name in ("too_long", "too_short")
        if data[name]
    )
    table = new_table(f"retaining heads for {made.record['base']['name']}")
    table.add_column("figure")
    table.add_column("value", overflow="fold")
    rows = {
        "loss, first": f"{result['loss_first']:.4f}",
        "loss, last": f"{result['loss_last']:.4f}",
        "overlap, first": f"{result['overlap_first']:.1%} of the best tenth",
        "overlap, last": f"{result['overlap_last']:.1%}",
        "steps": f"{result['steps']:,}",
        "tokens": f"{result['tokens']:,}",
        "samples": f"{data['samples']:,}{left}",
        "time": f"{result['seconds']:.1f} s",
        "files": f"{out}: {', '.join(made.files)}",
    }
    if held_out := result["held_out"]:
        rows["held out"] = f"loss {held_out['loss']:.4f}, overlap {held_out['overlap']:.1%}"
    for name, value in rows.items():
        table.add_row(name, value)
    return table
