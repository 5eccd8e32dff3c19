"""What every command is: options that are called when they are filled; nothing here loads torch."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from threading import current_thread, main_thread
from typing import Any, ClassVar

INTERRUPTED = 130  # exit code: 128 + SIGINT


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command is a dataclass of its options. runs: "module:function", which takes them; imported only then."""

    runs: ClassVar[str]

    def __init_subclass__(cls, runs: str = "", **others: Any) -> None:
        super().__init_subclass__(**others)
        cls.runs = runs

    def __call__(self) -> int:
        module, _, function = self.runs.partition(":")
        with ending_at_once():
            run = getattr(import_module(module), function)
        return int(run(self))


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Within, Ctrl-C ends the process: while they are imported, libraries take it for an error of another kind."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler or current_thread() is not main_thread():
        yield
        return
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
