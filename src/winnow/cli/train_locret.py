"""`winnow train locret`: retaining heads for a model."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rich.table import Table

from winnow.cli.commands.train import Locret
from winnow.cli.deliver import Record, deliver
from winnow.cli.options import JsonOptions
from winnow.cli.terminal import console, interruptible, new_table
from winnow.cli.training import Bar, interrupted
from winnow.learn.heads import HeadsReport, train_heads


def locret(options: Locret) -> int:
    """Train retaining heads; returns the exit code."""
    llm = options.load()
    made: HeadsReport | None = None
    with ExitStack() as stack, interruptible():
        bar = Bar(stack)
        made = train_heads(
            llm,
            options.data,
            options.out,
            options.recipe,
            validation=options.validation,
            resume=options.resume,
            progress=lambda at: bar.show(at.step, at.steps, at.tokens, {"loss": at.loss, "overlap": at.overlap}),
        )
    if made is None:
        return interrupted(options.out)
    figures = {**made.record, "out": str(options.out), "files": made.files}
    shown = partial(_show, made, options.out)
    return deliver(Record("train locret", figures, shown), JsonOptions(as_json=options.as_json))


def _show(made: HeadsReport, out: Path) -> None:
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
