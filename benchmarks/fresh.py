"""Run a function in a process of its own, which holds nothing but what the function needs."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from winnow.errors import WinnowError

Result = TypeVar("Result")


class ProcessKilled(Exception):
    """The system ended the process, by the signal that the message names."""


def in_fresh_process(
    function: Callable[..., Result], *arguments: Any, progress: Callable[[int], None] = lambda tokens: None
) -> Result:
    """What `function(*arguments, progress=...)` returns in a spawned process; the numbers it gives to its `progress`
    reach this one's.

    function: one at the top level of a module. Arguments and result are pickled. A WinnowError that it raises is raised
    here, and any other error ends the process with its traceback on standard error and is a RuntimeError here. An
    interrupt here ends the process.
    Raises ProcessKilled where a signal has ended it, as the system does when memory is short.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, function, arguments), daemon=True)
    try:
        with _interrupts_blocked():
            process.start()
        sender.close()
        while isinstance(message := receiver.recv(), int):
            progress(message)
    except EOFError:
        process.join()
        code = process.exitcode or 0
        if code < 0:
            raise ProcessKilled(signal.Signals(-code).name) from None
        raise RuntimeError(f"{function.__name__} failed in its process, which ended with code {code}") from None
    finally:
        if process.pid is not None:  # an interrupt may come before it is started
            process.kill()
            process.join()
        receiver.close()
    [result] = message
    if isinstance(result, WinnowError):
        raise result
    return result


def _child(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Send numbers of `progress` as they come, then a list of what came out of it: a result or a WinnowError."""
    try:
        sender.send([function(*arguments, progress=sender.send)])
    except WinnowError as error:
        sender.send([error])


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """A process started within never sees Ctrl-C, not even while it imports; this one sees it after."""
    resource_tracker.ensure_running()  # where `start` has to do it, it unblocks the signal
    came: list[int] = []
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # The mask is this thread's, which the new process inherits; torch's threads take signals too, and tell this one.
    handler = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if came:
            signal.raise_signal(signal.SIGINT)
