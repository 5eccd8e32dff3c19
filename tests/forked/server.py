"""Import what is asked for, then fork for everyone who connects, until standard input ends.

arguments: Python code that imports; the program that stands for this Python; a socket that listens, by its number.
"""

import contextlib
import fcntl
import json
import multiprocessing
import os
import resource
import runpy
import selectors
import shutil
import signal
import socket
import sys
import traceback
from typing import Any

MOST = 500  # numbers of files, far above what tests have open


def receive(client: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """A request, and the files that come with it; None where who asks is gone before all of it has come."""
    files: list[int] = []
    try:
        size, files, *_ = socket.recv_fds(client, 4, MOST)
        return json.loads(client.makefile("rb").read(int.from_bytes(size, "big"))), files
    except (OSError, ValueError):
        return None, files


def tell(client: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # who asked may be gone at any time, as when it was killed
        client.sendall(f"{number}\n".encode())


def become(given: dict[str, Any], files: list[int]) -> None:
    """Be the process that was asked for, up to its first line."""
    held = [fcntl.fcntl(file, fcntl.F_DUPFD, MOST) for file in files]
    os.closerange(0, MOST)
    for file, number in zip(held, given["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    os.chdir(given["folder"])
    os.environ.clear()
    os.environ.update(given["environment"])
    for limit, bounds in given["limits"]:
        resource.setrlimit(limit, tuple(bounds))
    signal.signal(signal.SIGINT, signal.default_int_handler if given["interrupted"] else signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, given["blocked"])


def work(arguments: list[str], folder: str) -> None:
    """As Python does with these arguments; its own flags are known already."""
    while arguments[0].startswith("-") and arguments[0] not in ("-c", "-m"):
        arguments = arguments[1:]
    match arguments:
        case ["-c", code, *rest]:
            sys.argv, space = ["-c", *rest], {"__name__": "__main__"}
            sys.path.insert(0, folder)
            exec(code, space)
        case ["-m", module, *rest]:
            sys.argv = [module, *rest]
            sys.path.insert(0, folder)
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [script, *rest]:
            sys.argv = [script, *rest]
            sys.path.insert(0, os.path.dirname(script))
            runpy.run_path(script, run_name="__main__")


def child(given: dict[str, Any], files: list[int]) -> None:
    """A whole process; it does not return."""
    ended = 1
    try:
        become(given, files)
        work(given["arguments"], given["folder"])
        ended = 0
    except SystemExit as end:
        ended = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            if not stream.closed:
                stream.flush()
        os._exit(ended)


def serve(listener: socket.socket) -> None:
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ)
    waiting.register(0, selectors.EVENT_READ)
    while True:
        (key, _), *_ = waiting.select()  # the others are ready the next time, too
        if key.fd == 0:
            return
        if key.fileobj is listener:
            client, _ = listener.accept()
            given, files = receive(client)
            if given is not None and (process := os.fork()) == 0:
                child(given, files)
            for file in files:
                os.close(file)
            if given is None:
                client.close()
                continue
            tell(client, process)
            waiting.register(os.pidfd_open(process), selectors.EVENT_READ, (process, client))
            waiting.register(client, selectors.EVENT_READ, (process, None))
            continue
        waiting.unregister(key.fileobj)
        process, client = key.data
        if client is None:  # who asked is gone
            os.kill(process, signal.SIGKILL)
            continue
        os.close(key.fd)
        _, status = os.waitpid(process, 0)
        if client in waiting.get_map():
            waiting.unregister(client)
            tell(client, os.waitstatus_to_exitcode(status))
        client.close()


imports, program, number = sys.argv[1:]
signal.signal(signal.SIGINT, signal.SIG_IGN)
exec(imports)
sys.executable = program
multiprocessing.set_executable(program)
serve(socket.socket(fileno=int(number)))
shutil.rmtree(os.path.dirname(program))
