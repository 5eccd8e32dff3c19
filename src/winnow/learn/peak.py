"""The most memory that a training has held."""

import re
import sys
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")


def peak_bytes(device: torch.device) -> int:
    """Of a model on a GPU what torch has allocated there at most; else the process's resident memory, at its most."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if STATUS.is_file():  # not `ru_maxrss`, which a new process inherits from the one that has started it
        [most] = re.findall(r"^VmHWM:\s+(\d+) kB$", STATUS.read_text(encoding="utf-8"), re.MULTILINE)
        return 1024 * int(most)
    import resource  # there is none on Windows

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else 1024 * used
