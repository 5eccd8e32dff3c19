"""A Python that has imported torch and Winnow: a process of it costs a fork, and not seconds of imports."""

import functools
import os
import resource
import shlex
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
MEMORY = 6 * 2**30  # bytes of address space, most of which is libraries
SECONDS = 600  # on a processor: none takes a tenth of it where products of bfloat16 are fast
WINNOW = "import numba, winnow.cli.main, winnow.cli.run, winnow.server.app, winnow.server.run"
WINNOW += ", transformers.models.llama.modeling_llama"
SHARED = "WINNOW_TEST_PYTHON"  # the program that the process which started these workers has made for them


@functools.cache
def python(imports: str = WINNOW, **environment: str) -> str:
    """A program to run where one would run `sys.executable`, with a script, `-m` or `-c`.

    What it runs are forks of a process that has run `imports` and ends with this one. They have the files, the folder,
    the environment and the limits of who runs them. environment: what the process and its forks have besides.
    """
    if SHARED in os.environ and (imports, environment) == (WINNOW, {}):
        return os.environ[SHARED]
    folder = Path(tempfile.mkdtemp(prefix="winnow-forks-"))
    program, place = folder / "python", str(folder / "socket")
    settings = [f"{name}={value}" for name, value in environment.items()]
    words = shlex.join(["env", *settings, sys.executable, "-IS", str(HERE / "client.py"), place])
    program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    program.chmod(stat.S_IRWXU)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen()
        every = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
        command = [sys.executable, HERE / "server.py", imports, program, str(listener.fileno())]
        _servers.append(subprocess.Popen(command, stdin=subprocess.PIPE, env=every, pass_fds=[listener.fileno()]))
    return str(program)


_servers: list[subprocess.Popen[bytes]] = []  # each ends when its standard input does


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, and what it printed."""

    code: int
    out: str
    err: str


def start(arguments: Sequence[object], program: str | None = None, **settings: object) -> subprocess.Popen[str]:
    """A process with pipes, in the memory and the time on a processor that there are for it, which Ctrl-C reaches.

    program: `python()` where it is none.
    """
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [program or python(), *map(str, arguments)]
    return subprocess.Popen(command, text=True, preexec_fn=_bounded, **pipes, **settings)


def _bounded() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    # A parent started in the background ignores Ctrl-C, and its children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def first_line(process: subprocess.Popen[str]) -> str:
    """What it says first on standard error. Raises RuntimeError with all that it says where that is a traceback."""
    assert process.stderr is not None
    if (said := process.stderr.readline()).startswith("Traceback"):
        raise RuntimeError(said + process.stderr.read())
    return said


def run(parts: Sequence[Sequence[object]], program: str | None = None, given: str = "") -> list[Ended]:
    """Processes with each list of arguments, all at once; given: what all find on standard input."""
    started = [start(each, program) for each in parts]
    outputs = [each.communicate(given) for each in started]
    return [Ended(each.returncode, *shown) for each, shown in zip(started, outputs, strict=True)]


def run_commands(commands: Sequence[Sequence[str]], *, given: str = "") -> list[Ended]:
    """The command `winnow` with each list of arguments."""
    return run([["-m", "winnow", *each] for each in commands], given=given)
