"""A server to be asked: `winnow serve`, started for it, or one that runs already."""

import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import httpx2

from benchmarks.resident import STATUS, descendants, resident_of
from winnow.errors import InputError

LAST = 20  # lines of what it says on standard error
END_S = 60.0  # that it has to end
METRICS = re.compile(r"^winnow:(\w+) (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Server:
    """Where it is reached, and its process, where that is known."""

    url: str
    pid: int | None

    def resident(self) -> int | None:
        """Bytes of memory that it and the processes below it have; None where that cannot be known."""
        if self.pid is None or not STATUS.exists():
            return None
        found = [resident_of(pid) for pid in (self.pid, *descendants(self.pid))]
        return sum(each for each in found if each is not None) or None

    def metrics(self) -> dict[str, float]:
        """What `winnow serve` shows at /metrics without labels, by name; of another server: nothing."""
        try:
            reply = httpx2.get(self.url + "/metrics", trust_env=False)
        except httpx2.TransportError:
            return {}
        return {name: float(value) for name, value in METRICS.findall(reply.text)} if reply.status_code == 200 else {}


@contextmanager
def started(typed: Sequence[str]) -> Iterator[Server]:
    """`winnow serve` with what was typed, on a port of its own. Raises InputError with what it says where it cannot."""
    command = [sys.executable, "-m", "winnow", "serve", *typed, "--port", "0"]
    # In a session of its own: Ctrl-C ends the measurement, which then ends the server.
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    try:
        said = deque[str](maxlen=LAST)
        for line in process.stderr:
            said.append(line)
            if " at http" in line:
                break
        else:
            raise InputError(f"winnow serve has ended: {''.join(said).strip()}")
        threading.Thread(target=lambda: deque(process.stderr or (), maxlen=0), daemon=True).start()
        yield Server(said[-1].split(" at ")[1].split("/v1;")[0], process.pid)
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
