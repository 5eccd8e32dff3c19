"""The most memory that a process has held."""

import re
import sys
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")


def peak_bytes(device: torch.device) -> int | None:
    """The most that this process has held since it began: where the model is on a GPU what torch has allocated there,
    else resident memory. None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if STATUS.is_file():  # not `ru_maxrss`, which a new process inherits from the one that has started it
        found = re.search(r"^VmHWM:\s+(\d+) kB$", STATUS.read_text(encoding="utf-8"), re.MULTILINE)
        return None if found is None else 1024 * int(found[1])
    try:
        import resource
    except ImportError:  # on Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most
