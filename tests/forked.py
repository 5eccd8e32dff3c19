"""Python code run in forks of a process that has imported what it needs: many processes for the price of one start."""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MEMORY = 6 * 2**30  # bytes of address space, most of which is libraries
WINNOW = "import winnow.cli.run, winnow.runtime.llm, transformers.models.llama.modeling_llama"
# For each line of standard input: every part in a fork of its own, all at once, with its own input, output and error,
# and at most a minute on a processor.
SERVER = f"""
import json, os, resource, sys, tempfile, traceback

def fork(code, files, folder, environment):
    child = os.fork()
    if child:
        return child
    ended = 0
    try:
        for number, file in enumerate(files):
            os.dup2(file.fileno(), number)
        sys.stdin = open(0)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
        exec(code, {{"__name__": "forked"}})
    except SystemExit as end:
        ended = end.code
    except BaseException:
        traceback.print_exc()
        ended = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(ended or 0))

exec(sys.argv[1])
for line in sys.stdin:
    parts, given, *place = json.loads(line)
    running, ended = [], []
    for code in parts:
        files = [tempfile.TemporaryFile("w+") for _ in range(3)]
        files[0].write(given)
        files[0].seek(0)
        running.append((fork(code, files, *place), files))
    for child, files in running:
        _, status = os.waitpid(child, 0)
        for file in files:
            file.seek(0)
        ended.append([os.waitstatus_to_exitcode(status), files[1].read(), files[2].read()])
    print(json.dumps(ended), flush=True)
"""


@dataclass(frozen=True)
class Ended:
    """How a fork ended: its exit code, and what it printed."""

    code: int
    out: str
    err: str


class Forks:
    """A process that has run `imports`, with `environment` beside this one's; it ends with this one."""

    def __init__(self, imports: str, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER, imports],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self._settings(),
        )  # fmt: skip

    def run(self, parts: Sequence[str], given: str = "") -> list[Ended]:
        """Run each part in a fork, in this process's folder and environment; given: what all find on standard input."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps([list(parts), given, os.getcwd(), self._settings()]), file=self._server.stdin, flush=True)
        return [Ended(*each) for each in json.loads(self._server.stdout.readline())]

    def _settings(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **self.environment}


@functools.cache
def forks(imports: str = WINNOW, **environment: str) -> Forks:
    """A process to fork from, started when first asked for."""
    return Forks(imports, environment)


def run_commands(commands: Sequence[Sequence[str]], *, given: str = "") -> list[Ended]:
    """The command `winnow` with each list of arguments, as `python -m winnow` runs it."""
    code = "import sys; sys.argv[1:] = {!r}\nfrom winnow.__main__ import main; main()"
    return forks().run([code.format(list(each)) for each in commands], given)
