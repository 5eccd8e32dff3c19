"""A worker process: ask it, and hear how it ended if it ends."""

import json
import os
import signal
import subprocess
import tempfile
from types import TracebackType
from typing import Any

from winnow.errors import CapacityError, InputError, MissingExtraError
from winnow.evaluation.peers.base import Arm

SHOWN = 300  # characters of a worker's last words


class PeerEnded(Exception):
    """A worker's process ended before it answered; the message says how, in one line."""


class Worker:
    """The process of an arm. Use it as a context: it is ended at the end.

    Its libraries see `threads` CPU threads each, and Ctrl-C reaches this process only.
    """

    def __init__(self, arm: Arm, *, threads: int) -> None:
        self.arm = arm
        counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), str(threads))
        self._said = tempfile.TemporaryFile()  # noqa: SIM115, closed in close()
        try:
            self._process = subprocess.Popen(
                [arm.python, str(arm.script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env={**os.environ, **counts},
                start_new_session=True,
            )
        except OSError as error:
            raise InputError(f"{arm.label}: cannot run {arm.python}: {error.strerror}") from error

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def ask(self, what: str, **request: Any) -> dict[str, Any]:
        """The worker's answer. Raises InputError or MissingExtraError with its refusal, and PeerEnded."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"do": what, **request}).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise PeerEnded(self._end())
        try:
            reply = json.loads(line)
        except ValueError:
            raise PeerEnded(f"{self.arm.python} does not answer as a Python does: {line[:60]!r}") from None
        if "error" in reply:
            kind = MissingExtraError if reply["missing"] else InputError
            raise kind(f"{self.arm.label}: {reply['error']}")
        found: dict[str, Any] = reply["ok"]
        return found

    def require(self, what: str, **request: Any) -> dict[str, Any]:
        """`ask` where nothing goes on without the answer: raises CapacityError where the process has ended."""
        try:
            return self.ask(what, **request)
        except PeerEnded as ended:
            raise CapacityError(f"{self.arm.label}: {ended}; leave it out, or give it another Python") from ended

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()

    def _end(self) -> str:
        """How the process ended, and the last thing it said."""
        code = self._process.wait()
        if code < 0:
            name = signal.Signals(-code).name
            return f"its process was ended by {name}" + (", as where memory is short" if name == "SIGKILL" else "")
        self._said.seek(0)
        lines = [line for line in self._said.read().decode("utf-8", "replace").splitlines() if line.strip()]
        return f"its process ended with code {code}: {lines[-1].strip()[:SHOWN] if lines else 'it said nothing'}"
