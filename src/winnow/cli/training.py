"""What the commands that train share: their progress, and how they end, interrupted or not."""

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from rich.console import Group

from winnow.cli.command import INTERRUPTED
from winnow.cli.commands.train import Training
from winnow.cli.deliver import Record, deliver
from winnow.cli.options import JsonOptions
from winnow.cli.tables import facts
from winnow.cli.terminal import Meter, interruptible
from winnow.cli.train_plot import plot_training
from winnow.errors import InputError
from winnow.learn.directory import last_checkpoint
from winnow.learn.journal import LOG

if TYPE_CHECKING:
    from winnow.learn.run import Progress, Report
    from winnow.learn.sft import Report as SpeedReport

DRAWN_EVERY_S = 20.0  # at most: a picture takes a part of a second

Made = TypeVar("Made", "SpeedReport", "Report")


def train(
    command: str,
    options: Training,
    run: "Callable[[Callable[[Progress], None]], Made]",
    told: Callable[[Made], tuple[str, Mapping[str, str]]],
    use: str,
) -> int:
    """Train, and say what was made; returns the exit code.

    run: trains, and calls what it is given after every step. told: a title, and facts on what was made. use: how other
    commands take it.
    """
    made, done, drawn = None, 0, 0.0
    first = os.environ.get("RANK", "0") == "0"  # of several processes, which have one log
    draw = partial(plot_training, options.plot, options.out / LOG, command) if options.plot and first else None
    with Meter("training") as meter, interruptible():

        def advance(at: "Progress") -> None:
            nonlocal done, drawn
            meter.advance(at.step - done, at.steps)
            done = at.step
            if draw is not None and time.monotonic() - drawn >= DRAWN_EVERY_S:
                with suppress(InputError):  # a disk that is full now ends no training
                    draw()
                drawn = time.monotonic()
            figures = "".join(f", {name} {value:.4f}" for name, value in at.figures.items() if value is not None)
            meter.note(f"step {at.step:,} of {at.steps:,}{figures}, {at.tokens:,} tokens")

        made = run(advance)
    if draw is not None and (options.out / LOG).is_file():
        draw()
    if made is None:
        checkpoint = last_checkpoint(options.out)
        way = f"; go on from {checkpoint.name} with --resume" if checkpoint else " before the first checkpoint"
        print(f"interrupted{way}", file=sys.stderr)
        return INTERRUPTED
    if not first:
        return 0
    title, values = told(made)
    table = facts(title, {**values, "files": f"{options.out}: {', '.join(made.files)}"}, "figure")
    record = {**made.record, "out": str(options.out), "files": made.files}
    return deliver(Record(command, record, Group(table, use)), JsonOptions(as_json=options.as_json))


def memory(peak: int | None) -> str:
    """What a training held at most."""
    return "not known" if peak is None else f"{peak / 2**20:,.0f} MiB at most"


def left_out(data: Mapping[str, int]) -> str:
    """`, 3 left out as too long` of what the data had."""
    found = {name.removeprefix("too_"): data.get(name) for name in ("too_long", "too_short")}
    return "".join(f", {count:,} left out as too {why}" for why, count in found.items() if count)
