"""What commands share in talking to the terminal: consoles, progress, JSON, and Ctrl-C."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from winnow.errors import writing

Some = TypeVar("Some")
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
        path.write_bytes(text.encode())  # encoded before what is there is gone


def _json(document: dict[str, Any] | list[Any]) -> str:
    text = json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False, default=str)
    return text.encode("utf-8", "backslashreplace").decode()  # bytes of a file's name that are no UTF-8, as JSON has it


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


class NotedTable(Table):
    """A narrow table (one rule under the head, one space between columns) over a dim note as wide as the screen."""

    def __init__(self, title: str | None, note: str | None) -> None:
        super().__init__(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        self.note = note

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from super().__rich_console__(console, options)
        if self.note:
            yield Text(self.note, style="table.caption")


def new_table(title: str | None, note: str | None = None) -> Table:
    """Without columns yet."""
    return NotedTable(title, note)


class Meter:
    """Progress of long work on standard error: a bar and the time that is left on a terminal, else a line now and then.

    total: in tokens, or whatever `advance` counts; None: not known before the first of it is done. after_s: work that
    takes less is not announced; None: it is at once.
    """

    def __init__(self, title: str, total: float | None = None, after_s: float | None = None) -> None:
        screen = console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=screen,
            transient=True,
            disable=not screen.is_terminal,
            speed_estimate_period=math.inf,  # steps may lie minutes apart
        )
        self._task = self._bar.add_task(title, total=total)
        self._plain, self._title, self._after_s = not screen.is_terminal, title, after_s
        self._began, self._said = time.monotonic(), -QUIET_S

    def __enter__(self) -> "Meter":
        if self._after_s is None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def advance(self, done: float, total: float | None = None) -> None:
        """So much was just done. total: of all, where it was not known."""
        self._bar.update(self._task, advance=done, total=total)
        if self._after_s is not None and time.monotonic() - self._began >= self._after_s:
            self._after_s = None
            self._bar.start()
            self.note(self._title)

    def stop(self) -> None:
        self._bar.stop()

    def note(self, text: str) -> None:
        """Show `text`, such as "12 of 40 answers"; without a terminal at most every `QUIET_S` seconds."""
        self._bar.update(self._task, description=text)
        if self._plain and time.monotonic() - self._said >= QUIET_S:
            self._said = time.monotonic()
            left = self._bar.tasks[0].time_remaining or 0
            say(f"{text}, about {timedelta(seconds=left)} left" if left > 1 else text)


def collect(
    title: str, total: float, wanted: str, made: Callable[..., Iterator[Some]], together: int = 1
) -> list[Some]:
    """What `made(progress=...)` yields, to its end or to Ctrl-C, with a meter.

    total: what the numbers given to `progress` add up to. wanted: how many there will be, such as "12 answers".
    together: how many are told of at a time, since they are of no use alone.
    """
    found: list[Some] = []
    with Meter(title, total) as meter, interruptible():
        for each in made(progress=meter.advance):
            found.append(each)
            if len(found) % together == 0:
                meter.note(f"{len(found)} of {wanted}")
    return found


def converting(name: str) -> Meter:
    """Progress of converting a GGUF file, if there is more to convert than hardly anything."""
    return Meter(f"converting {name}, once", after_s=NOTICED_S)
