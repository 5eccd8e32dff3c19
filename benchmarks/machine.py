"""The machine that a figure was measured on."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


def machine(device: torch.device) -> dict[str, Any]:
    """The device by name, what the CPU's vectors are, cores, threads, and versions of what the figures depend on."""
    versions = {"python": platform.python_version()}
    for package in ("winnow-llm", "torch", "transformers", "numba"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "none"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()
    return {
        "device": name,
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "versions": versions,
    }


def _cpu_name() -> str:
    """The model name where the system tells it (Linux), else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
