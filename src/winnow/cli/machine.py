"""What memory this machine has, and what this process holds of it."""

import os
import re
import sys
from pathlib import Path

MEMINFO, STATUS = Path("/proc/meminfo"), Path("/proc/self/status")
GROUP = Path("/sys/fs/cgroup")  # of a container: its own limit, and what it holds


def available_bytes() -> int:
    """What this process may come to hold: its own memory, and what the system has for more; no more than its control
    group allows. Where the system does not say what is available: all the machine has."""
    if not MEMINFO.is_file():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    left = _kilobytes(MEMINFO, "MemAvailable")
    if (limit := _number(GROUP / "memory.max")) is not None:
        left = min(left, max(0, limit - (_number(GROUP / "memory.current") or 0) + _cached_bytes()))
    return resident_bytes() + left


def resident_bytes() -> int:
    """What this process holds, in RAM."""
    if STATUS.is_file():
        return _kilobytes(STATUS, "VmRSS")
    import resource  # there is none on Windows

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def _kilobytes(path: Path, field: str) -> int:
    """A line of kB in a file of the kernel's, in bytes."""
    [found] = re.findall(rf"^{field}:\s+(\d+) kB$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return 1024 * int(found)


def _cached_bytes() -> int:
    """What the control group holds of files, which gives way to other memory."""
    try:
        text = (GROUP / "memory.stat").read_text(encoding="utf-8")
    except OSError:
        return 0
    return sum(int(found) for found in re.findall(r"^(?:in)?active_file (\d+)$", text, re.MULTILINE))


def _number(path: Path) -> int | None:
    """None where there is no such file, or no limit in it."""
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
