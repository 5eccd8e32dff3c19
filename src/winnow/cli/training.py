"""What the commands that train share: their progress, and how they end, interrupted or not."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

from rich.console import Group

from winnow.cli.command import INTERRUPTED
from winnow.cli.commands.train import Training
from winnow.cli.deliver import Record, deliver
from winnow.cli.options import JsonOptions
from winnow.cli.tables import facts
from winnow.cli.terminal import Meter, interruptible
from winnow.learn.directory import last_checkpoint

if TYPE_CHECKING:
    from winnow.learn.convolutions import ConvolutionsProgress, ConvolutionsReport
    from winnow.learn.gates import GatesProgress, GatesReport
    from winnow.learn.heads import HeadsProgress, HeadsReport
    from winnow.learn.sft import Report
    from winnow.learn.watch import Progress  # whose libraries come with an extra

    Trained = Progress | HeadsProgress | GatesProgress | ConvolutionsProgress

Made = TypeVar("Made", "Report", "HeadsReport", "GatesReport", "ConvolutionsReport")


def cost(made: "HeadsReport | GatesReport | ConvolutionsReport", items: str = "samples") -> dict[str, str]:
    """What a run has read and taken, for `told`; items: what it calls its samples."""
    result, data = made.record["result"], made.record["data"]
    return {
        "steps": f"{result['steps']:,}",
        "tokens": f"{result['tokens']:,}",
        items: f"{data['samples']:,}{left_out(data)}",
        "time": f"{result['seconds']:.1f} s",
    }


def train(
    command: str,
    options: Training,
    run: "Callable[[Callable[[Trained], None]], Made]",
    told: Callable[[Made], tuple[str, Mapping[str, str]]],
    use: str,
) -> int:
    """Train, and say what was made; returns the exit code.

    run: trains, and calls what it is given after every step. told: a title, and facts on what was made. use: how other
    commands take it.
    """
    made, done = None, 0
    with Meter("training") as meter, interruptible():

        def advance(at: "Trained") -> None:
            nonlocal done
            meter.advance(at.step - done, at.steps)
            done = at.step
            figures = "".join(f", {name} {value:.4f}" for name, value in asdict(at).items() if isinstance(value, float))
            meter.note(f"step {at.step:,} of {at.steps:,}{figures}, {at.tokens:,} tokens")

        made = run(advance)
    if made is None:
        checkpoint = last_checkpoint(options.out)
        way = f"; go on from {checkpoint.name} with --resume" if checkpoint else " before the first checkpoint"
        print(f"interrupted{way}", file=sys.stderr)
        return INTERRUPTED
    title, values = told(made)
    table = facts(title, {**values, "files": f"{options.out}: {', '.join(made.files)}"}, "figure")
    record = {**made.record, "out": str(options.out), "files": made.files}
    return deliver(Record(command, record, Group(table, use)), JsonOptions(as_json=options.as_json))


def left_out(data: Mapping[str, int]) -> str:
    """`, 3 left out as too long` of what the data had."""
    found = {name.removeprefix("too_"): data.get(name) for name in ("too_long", "too_short")}
    return "".join(f", {count:,} left out as too {why}" for why, count in found.items() if count)
