"""What commands share in talking to the terminal: consoles, progress, JSON, and Ctrl-C."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from winnow.errors import InputError

PLAIN_WIDTH = 140  # columns where the output is a file or a pipe
QUIET_S = 10.0  # least seconds between two progress lines where standard error is no terminal
NOTICED_S = 1.0  # work that takes less is not announced


def console(*, stderr: bool = False) -> Console:
    """A console that takes strings as they are: no markup, no highlighting."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PLAIN_WIDTH
    return Console(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


def print_json(document: dict[str, Any] | list[Any]) -> None:
    """The one JSON document of a command, on standard output."""
    print(_json(document))


def write_json(path: Path, document: dict[str, Any]) -> None:
    write_text(path, _json(document) + "\n")


def write_text(path: Path, text: str) -> None:
    """Raises InputError where the file cannot be written, such as on a full disk."""
    with writing(path):
        path.write_text(text, encoding="utf-8")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Within, `path` is written: what the operating system says against it becomes an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


def _json(document: dict[str, Any] | list[Any]) -> str:
    return json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False, default=str)


def say(text: str) -> None:
    """A line of progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def size(count: int) -> str:
    """Bytes as people read them: "92.4 MiB"."""
    unit = min(max(count.bit_length() - 1, 0) // 10, 3)
    return f"{count / 2 ** (10 * unit):,.1f} {('bytes', 'KiB', 'MiB', 'GiB')[unit]}" if unit else f"{count} bytes"


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C ends the block and not the command: what the block made so far can still be shown."""
    with suppress(KeyboardInterrupt):
        yield


def new_table(title: str | None, caption: str | None = None) -> Table:
    """A narrow table: one rule under the head, one space between columns."""
    return Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)


class Meter:
    """Progress of long work on standard error: a bar on a terminal, else a line now and then.

    total: in tokens. `advance` takes tokens just done; `note` says what has been finished.
    """

    def __init__(self, title: str, total: int) -> None:
        screen = console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(),
            console=screen,
            transient=True,
            disable=not screen.is_terminal,
        )
        self._plain = not screen.is_terminal
        self._task = self._bar.add_task(title, total=total)
        self._said = -QUIET_S

    def __enter__(self) -> "Meter":
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def advance(self, tokens: int) -> None:
        self._bar.advance(self._task, tokens)

    def stop(self) -> None:
        self._bar.stop()

    def note(self, text: str) -> None:
        """Show `text`, such as "12 of 40 answers"; without a terminal at most every `QUIET_S` seconds."""
        self._bar.update(self._task, description=text)
        if self._plain and time.monotonic() - self._said >= QUIET_S:
            self._said = time.monotonic()
            say(text)


@contextmanager
def converting(name: str) -> Iterator[Callable[[int, int], None]]:
    """Progress of converting a GGUF file: takes the number of values just done and that of all.

    Where there is nothing to convert, or hardly anything, nothing is shown.
    """
    start, done, meter = time.monotonic(), 0, None

    def advance(values: int, total: int) -> None:
        nonlocal done, meter
        done += values
        if meter is not None:
            meter.advance(values)
        elif time.monotonic() - start >= NOTICED_S:
            meter = Meter("", total).__enter__()
            meter.note(f"converting {name}, once")
            meter.advance(done)

    try:
        yield advance
    finally:
        if meter is not None:
            meter.stop()
