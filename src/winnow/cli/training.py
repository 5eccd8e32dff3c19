"""What the commands that train share: their options, their progress, and what they say when they are interrupted."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from winnow.cli.terminal import Meter
from winnow.learn.directory import last_checkpoint

Data = Annotated[
    Path,
    typer.Argument(metavar="DATA", help='JSON Lines: {"messages": [...]} or {"prompt": ..., "answer": ...}.'),
]
NewDirectory = Annotated[
    Path, typer.Option("--out", "--output", "-o", metavar="DIR", help="A new directory for what is made.")
]
Bf16 = Annotated[bool, typer.Option("--bf16", help="Matrix products in bfloat16.")]
SaveEvery = Annotated[int, typer.Option(help="Steps between checkpoints.")]
LogEvery = Annotated[int, typer.Option(help="Steps between lines of log.jsonl.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in --out.")]


class Bar:
    """Steps done, on a meter that starts with the first one: before, nobody knows how many there are."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._meter: Meter | None = None
        self._done = 0

    def show(self, step: int, steps: int, tokens: int, figures: dict[str, float | None]) -> None:
        """figures: what the last line of the log says, by name; None before there is one."""
        if self._meter is None:
            self._meter = self._stack.enter_context(Meter("training", steps))
        self._meter.advance(step - self._done)
        self._done = step
        told = "".join(f", {name} {value:.4f}" for name, value in figures.items() if value is not None)
        self._meter.note(f"step {step:,} of {steps:,}{told}, {tokens:,} tokens")


def interrupted(out: Path) -> NoReturn:
    """End the command after Ctrl-C, and say how the run in `out` can go on."""
    checkpoint = last_checkpoint(out)
    way = f"; go on from {checkpoint.name} with --resume" if checkpoint else " before the first checkpoint"
    print(f"interrupted{way}", file=sys.stderr)
    raise typer.Exit(130)
