"""What the commands that train share: their progress, and what they say when they are interrupted."""

import sys
from contextlib import ExitStack
from pathlib import Path

from winnow.cli.deliver import INTERRUPTED
from winnow.cli.terminal import Meter
from winnow.learn.directory import last_checkpoint


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


def interrupted(out: Path) -> int:
    """Say after Ctrl-C how the run in `out` can go on; returns the exit code."""
    checkpoint = last_checkpoint(out)
    way = f"; go on from {checkpoint.name} with --resume" if checkpoint else " before the first checkpoint"
    print(f"interrupted{way}", file=sys.stderr)
    return INTERRUPTED
