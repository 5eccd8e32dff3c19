"""How every command and benchmark ends: one record, shown, written and drawn; interrupted, it says so and exits 130."""

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from winnow.cli.command import INTERRUPTED
from winnow.cli.options import JsonOptions
from winnow.cli.terminal import console, print_json, write_json

NOTE = "interrupted; this is what was finished"


@dataclass(frozen=True)
class Record:
    """What a command has come to.

    command: its name. figures: for JSON. shown: for people, or what prints it. draw: makes the picture; None: there is
    nothing to draw.
    complete: whether it came to its end. about: model, seed and settings, that the figures depend on. failed: the exit
    code where the command did its work and has bad news. program: what is typed before the command.
    """

    command: str
    figures: dict[str, Any]
    shown: RenderableType | Callable[[], None]
    draw: Callable[[Path], None] | None = None
    complete: bool = True
    about: dict[str, Any] = field(default_factory=dict)
    failed: int = 0
    program: str = "winnow"

    def to_dict(self) -> dict[str, Any]:
        """The one JSON document: with the command as it was typed, and the code that made it."""
        from winnow.evaluation.about import commit

        made_by = {"typed": f"{self.program} {shlex.join(map(travelling, sys.argv[1:]))}", "commit": commit()}
        return {"command": self.command, "complete": self.complete, **self.figures, **self.about, **made_by}


def travelling(argument: str) -> str:
    """What was typed, as it stands in files that travel: of an absolute path, alone or behind a =, the last part."""
    before, equals, path = argument.rpartition("=")
    return f"{before}{equals}{Path(path).name}" if Path(path).is_absolute() else argument


def _show(record: Record, document: dict[str, Any], options: JsonOptions) -> None:
    if options.as_json:
        print_json(document)
    elif callable(record.shown):
        record.shown()
    else:
        console().print(record.shown)


def deliver(record: Record, options: JsonOptions) -> int:
    """Show, write and draw as the options say; returns the exit code."""
    out, plot = getattr(options, "out", None), getattr(options, "plot", None)
    document = record.to_dict()
    try:  # either may fail: a disk is full, nobody reads on
        _show(record, document, options)
    finally:
        if out is not None:
            write_json(out, document)
        if plot is not None and record.draw is not None:
            record.draw(plot)
    if not record.complete and not record.failed:
        print(NOTE, file=sys.stderr)
        return INTERRUPTED
    return record.failed
