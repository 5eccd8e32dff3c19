"""`winnow train`: make a model, or an adapter for one, that answers well under a plan."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from winnow.cli import options
from winnow.cli.inputs import load_model, refuse
from winnow.cli.terminal import Meter, console, interruptible, new_table, print_json
from winnow.errors import InputError
from winnow.learn.directory import last_checkpoint
from winnow.learn.recipe import SCHEDULES, Lora, Recipe
from winnow.learn.sft import Report, train_speed
from winnow.policies.compute.speed import Speed
from winnow.runtime.adapters import need_train_extra

if TYPE_CHECKING:
    from winnow.learn.watch import Progress

app = typer.Typer(no_args_is_help=False, rich_markup_mode=None)

Data = Annotated[
    Path,
    typer.Argument(metavar="DATA", help='JSON Lines: {"messages": [...]} or {"prompt": ..., "answer": ...}.'),
]
Out = Annotated[Path, typer.Option("--out", "--output", "-o", metavar="DIR", help="A new directory for what is made.")]


@app.callback(invoke_without_command=True)
def train(context: typer.Context) -> None:
    """Make a model, or an adapter for one, that answers well under a plan."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def speed(
    data: Data,
    out: Out,
    model: options.Model = "needle",
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
    bf16: Annotated[bool, typer.Option("--bf16", help="Matrix products in bfloat16.")] = False,
    checkpointing: Annotated[bool, typer.Option("--checkpointing", help="Less memory, more time.")] = False,
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = Recipe.save_every,
    log_every: Annotated[int, typer.Option(help="Steps between lines of log.jsonl.")] = Recipe.log_every,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in --out.")] = False,
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
    llm = load_model(model, device, dtype or ("float32" if everything else None), threads, options.CHUNK)
    if llm.tokenizer is None:
        raise InputError("the model has no tokenizer, so it cannot read text; give a directory with a tokenizer.json")
    made: Report | None = None
    with ExitStack() as stack, interruptible():
        bar = _Bar(stack)
        made = train_speed(llm.model, llm.tokenizer, data, out, policy, recipe, resume=resume, progress=bar.show)
    if made is None:
        checkpoint = last_checkpoint(out)
        way = f"; go on from {checkpoint.name} with --resume" if checkpoint else " before the first checkpoint"
        print(f"interrupted{way}", file=sys.stderr)
        raise typer.Exit(130)
    if as_json:
        print_json({"command": "train speed", **made.record, "out": str(out), "files": made.files})
    else:
        console().print(_table(made, out))


class _Bar:
    """Steps done, on a meter that starts with the first one: before, nobody knows how many there are."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._meter: Meter | None = None
        self._done = 0

    def show(self, progress: "Progress") -> None:
        if self._meter is None:
            self._meter = self._stack.enter_context(Meter("training", progress.steps))
        self._meter.advance(progress.step - self._done)
        self._done = progress.step
        loss = "" if progress.loss is None else f", loss {progress.loss:.4f}"
        self._meter.note(f"step {progress.step:,} of {progress.steps:,}{loss}, {progress.tokens:,} tokens")


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
