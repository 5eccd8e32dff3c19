"""What a figure was measured with: the revision of the code, the machine, the versions of what computes."""

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGE = Path(__file__).parents[1]


@cache
def commit() -> str:
    """Of the repository that the package lies in, with "+" where its files have been changed since; else "unknown"."""
    try:
        _git("ls-files", "--error-unmatch", __file__)  # a package installed below some repository is not of it
        revision, changed = _git("rev-parse", "--short", "HEAD"), _git("status", "--porcelain", "--", str(PACKAGE))
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return revision + "+" * bool(changed)


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=PACKAGE, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def machine(device: torch.device) -> dict[str, Any]:
    """The device by name, cores, threads, and versions of what the figures depend on."""
    versions = {"python": platform.python_version()}
    for package in ("winnow-llm", "torch", "transformers", "numba"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "none"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    return {"device": name, "cores": os.cpu_count(), "threads": torch.get_num_threads(), "versions": versions}


def _cpu_name() -> str:
    """The model name where the system tells it (Linux), else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
