"""How much memory this process holds, and the most it has held since a moment: in RAM, or on its GPU."""

import os
import re
import sys
from pathlib import Path
from typing import Protocol

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
PEAK_TO_NOW = "5"  # written to CLEAR, the kernel forgets the peak so far (proc(5))


class Gauge(Protocol):
    """name: what is measured. begin: bytes now, and the peak begins anew. peak: the most bytes since."""

    @property
    def name(self) -> str: ...
    def begin(self) -> int: ...
    def peak(self) -> int: ...


def gauge_of(device: torch.device) -> Gauge:
    """What holds the weights and units of a model on `device`: the GPU's memory, or the process's resident memory."""
    if device.type == "cuda":
        return DeviceMemory(device)
    return ResidentMemory() if os.access(CLEAR, os.W_OK) else LifelongPeak()


class ResidentMemory:
    """Resident memory as Linux counts it.

    Not `ru_maxrss`: a new process inherits the peak of the one that has started it there.
    """

    name = "resident memory (VmRSS, VmHWM)"

    def begin(self) -> int:
        CLEAR.write_text(PEAK_TO_NOW)
        return _status("VmRSS")

    def peak(self) -> int:
        return _status("VmHWM")


class LifelongPeak:
    """The most resident memory since the process began, where the system tells no more than that."""

    name = "peak resident memory of the process (ru_maxrss)"

    def begin(self) -> int:
        return self.peak()

    def peak(self) -> int:
        import resource  # there is none on Windows

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else 1024 * most


class DeviceMemory:
    """What torch has allocated on a GPU."""

    name = "GPU memory allocated by torch"

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def begin(self) -> int:
        torch.cuda.reset_peak_memory_stats(self._device)
        return torch.cuda.memory_allocated(self._device)

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated(self._device)


def resident_parts() -> tuple[int, int]:
    """Bytes of this process's memory that are its alone, and of files, as one look of Linux counts them."""
    counted = dict(re.findall(r"^(RssAnon|RssFile):\s+(\d+) kB$", STATUS.read_text(encoding="utf-8"), re.MULTILINE))
    return 1024 * int(counted["RssAnon"]), 1024 * int(counted["RssFile"])


def resident_of(pid: int) -> int | None:
    """Bytes of resident memory of a process; None where it has just ended."""
    try:
        return _status("VmRSS", Path("/proc") / str(pid) / "status")
    except (OSError, ValueError):
        return None


def descendants(ancestor: int) -> set[int]:
    """Of a process: its children, and theirs."""
    parents = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has just ended
    below = {ancestor}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return below - {ancestor}


def _status(field: str, place: Path | None = None) -> int:
    """A line of kB in a process's status, this one's if no other is given, in bytes."""
    text = (place or STATUS).read_text(encoding="utf-8")
    [found] = re.findall(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
    return 1024 * int(found)
