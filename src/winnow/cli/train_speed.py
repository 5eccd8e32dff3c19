"""`winnow train speed`: a model, or an adapter for one, that answers from prompts that stop at layer K."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from winnow.cli.commands.train import Speed
from winnow.cli.deliver import Record, deliver
from winnow.cli.options import JsonOptions
from winnow.cli.terminal import interruptible, new_table
from winnow.cli.training import Bar, interrupted
from winnow.errors import InputError
from winnow.learn.recipe import Lora
from winnow.learn.sft import Report, train_speed
from winnow.policies.compute.speed import Speed as SpeedPolicy
from winnow.runtime.adapters import need_train_extra


def speed(options: Speed) -> int:
    """Train a model for prompts that stop at layer K; returns the exit code."""
    recipe = options.recipe
    if options.full and recipe.lora != Lora():
        raise InputError("--lora.* is about adapters, not about --full; leave it out")
    recipe = replace(recipe, lora=None) if options.full else recipe
    policy = SpeedPolicy(
        cutoff=options.cutoff, anchors=options.anchors, decode_from=options.decode_from, self_only=options.self_only
    )
    need_train_extra()
    llm = options.load(dtype=options.dtype or ("float32" if options.full else None))
    if llm.tokenizer is None:
        raise InputError("the model has no tokenizer, so it cannot read text; give a directory with a tokenizer.json")
    made: Report | None = None
    with ExitStack() as stack, interruptible():
        bar = Bar(stack)
        made = train_speed(
            llm.model,
            llm.tokenizer,
            options.data,
            options.out,
            policy,
            recipe,
            resume=options.resume,
            progress=lambda at: bar.show(at.step, at.steps, at.tokens, {"loss": at.loss}),
        )
    if made is None:
        return interrupted(options.out)
    figures = {**made.record, "out": str(options.out), "files": made.files}
    return deliver(Record("train speed", figures, _table(made, options.out)), JsonOptions(as_json=options.as_json))


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
