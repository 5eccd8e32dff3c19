"""Devices and dtypes by the names that people type."""

import torch

from winnow.errors import ModelError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def parse_dtype(name: str | torch.dtype | None) -> torch.dtype | None:
    """`"bfloat16"` -> torch.bfloat16. Raises ModelError for a dtype that models are not run in."""
    if name is None or name in DTYPES.values():
        return name  # type: ignore[return-value]
    if name not in DTYPES:
        raise ModelError(f"dtype {name!r} is unknown; use {', '.join(DTYPES)}")
    return DTYPES[name]


def parse_device(name: str | torch.device | None) -> torch.device:
    """The device of that name; None: CUDA where there is one, else the CPU. Raises ModelError if it is not there."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"device {name!r} is unknown; use cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise ModelError(f"device {str(name)!r} is not supported; use cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {str(name)!r} was asked for, but torch sees no GPU here; use cpu")
    return device
