"""`winnow train speed`: a model, or an adapter for one, that answers from prompts that stop at layer K."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from winnow.cli import options
from winnow.cli.inputs import load_model, refuse
from winnow.cli.terminal import console, interruptible, new_table, print_json
from winnow.cli.training import Bar, Bf16, Data, LogEvery, NewDirectory, Resume, SaveEvery, interrupted
from winnow.errors import InputError
from winnow.learn.recipe import SCHEDULES, Lora, Recipe
from winnow.learn.sft import Report, train_speed
from winnow.policies.compute.speed import Speed
from winnow.runtime.adapters import need_train_extra


def speed(
    data: Data,
    out: NewDirectory,
    model: options.Model = None,
    cutoff: Annotated[str, typer.Option(help="Layers for the prompt: a count, or a share; 1.0 is all.")] = str(
        Speed.cutoff
    ),
    anchors: Annotated[str, typer.Option(help="Prompt tokens for all layers: bos, none, system, first:4 ...")] = (
        Speed.anchors
    ),
    decode_from: Annotated[str, typer.Option(help="Where all layers begin: header, or last:m.")] = Speed.decode_from,
    self_only: Annotated[bool, typer.Option("--self-only", help="Above, tokens see anchors and themselves.")] = False,
    everything: Annotated[bool, typer.Option("--full", help="Train all parameters, not LoRA adapters.")] = False,
    lora_rank: Annotated[int | None, typer.Option(help=f"[default: {Lora.rank}]")] = None,
    lora_alpha: Annotated[int | None, typer.Option(help=f"[default: {Lora.alpha}]")] = None,
    lora_dropout: Annotated[float | None, typer.Option(help=f"[default: {Lora.dropout}]")] = None,
    lora_targets: Annotated[
        str | None, typer.Option(help=f"Linear layers, such as q_proj,v_proj.  [default: {Lora.targets}]")
    ] = None,
    epochs: Annotated[float, typer.Option(help="Passes over the data.")] = Recipe.epochs,
    steps: Annotated[int | None, typer.Option(help="Instead: optimizer steps.")] = None,
    learning_rate: Annotated[float, typer.Option("--learning-rate", "--lr")] = Recipe.learning_rate,
    schedule: Annotated[str, typer.Option(help=f"{', '.join(SCHEDULES)}; after the warm-up.")] = Recipe.schedule,
    warmup: Annotated[float, typer.Option(help="Share of the steps.")] = Recipe.warmup,
    weight_decay: Annotated[float, typer.Option()] = Recipe.weight_decay,
    clip: Annotated[float, typer.Option(help="Largest norm of the gradient.")] = Recipe.clip,
    batch: Annotated[int, typer.Option(help="Conversations per forward.")] = Recipe.batch,
    accumulate: Annotated[int, typer.Option(help="Forwards per optimizer step.")] = Recipe.accumulate,
    length: Annotated[
        int | None, typer.Option(help="Leave out longer conversations, in tokens.  [default: the model's positions]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the order of the data and of fresh adapters.")] = Recipe.seed,
    bf16: Bf16 = False,
    checkpointing: Annotated[bool, typer.Option("--checkpointing", help="Less memory, more time.")] = False,
    save_every: SaveEvery = Recipe.save_every,
    log_every: LogEvery = Recipe.log_every,
    resume: Resume = False,
    device: options.Device = None,
    dtype: Annotated[
        str | None, typer.Option(help="Of the weights.  [default: the checkpoint's; float32 with --full]")
    ] = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
) -> None:
    """Train a model to answer from a prompt that stops at layer K (SPEED): LoRA, or all parameters with --full.

    With --cutoff 1.0 it is ordinary fine-tuning on the same batches, to compare with.
    """
    given: dict[str, Any] = {
        "rank": lora_rank, "alpha": lora_alpha, "dropout": lora_dropout, "targets": lora_targets,
    }  # fmt: skip
    if everything:
        refuse("about adapters, not about --full", {f"--lora-{name}": value for name, value in given.items()})
    lora = None if everything else Lora(**{name: value for name, value in given.items() if value is not None})
    recipe = Recipe(
        epochs=epochs,
        steps=steps,
        learning_rate=learning_rate,
        schedule=schedule,
        warmup=warmup,
        weight_decay=weight_decay,
        clip=clip,
        batch=batch,
        accumulate=accumulate,
        length=length,
        seed=seed,
        bf16=bf16,
        checkpointing=checkpointing,
        save_every=save_every,
        log_every=log_every,
        lora=lora,
    )
    policy = Speed(cutoff=_cutoff(cutoff), anchors=anchors, decode_from=decode_from, self_only=self_only)
    need_train_extra()
    llm = load_model(model, device, dtype or ("float32" if everything else None), threads, None)
    if llm.tokenizer is None:
        raise InputError("the model has no tokenizer, so it cannot read text; give a directory with a tokenizer.json")
    made: Report | None = None
    with ExitStack() as stack, interruptible():
        bar = Bar(stack)
        made = train_speed(
            llm.model,
            llm.tokenizer,
            data,
            out,
            policy,
            recipe,
            resume=resume,
            progress=lambda at: bar.show(at.step, at.steps, at.tokens, {"loss": at.loss}),
        )
    if made is None:
        interrupted(out)
    if as_json:
        print_json({"command": "train speed", **made.record, "out": str(out), "files": made.files})
    else:
        console().print(_table(made, out))


def _cutoff(text: str) -> int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise InputError(f"--cutoff {text!r} must be a count of layers such as 24, or a share such as 0.75")


def _table(made: Report, out: Path) -> Table:
    """What was made, from what, at what cost."""
    result, data = made.result, made.record["data"]
    left = f", {data['too_long']:,} left out as too long" if data["too_long"] else ""
    table = new_table(made.record["plan"])
    table.add_column("figure")
    table.add_column("value", overflow="fold")
    for name, value in {
        "loss, first": f"{result.loss_first:.4f} nats per supervised token",
        "loss, last": f"{result.loss_last:.4f}",
        "steps": f"{result.steps:,}",
        "tokens": f"{result.tokens:,}",
        "conversations": f"{data['conversations']:,}{left}",
        "time": f"{result.seconds:.1f} s",
        "files": f"{out}: {', '.join(made.files)}",
    }.items():
        table.add_row(name, value)
    return table
