"""Memory that kernels are given by its address."""

import torch
from torch import Tensor


def floats(*shape: int) -> Tensor:
    """float32 on the CPU, not filled.

    Whatever torch's defaults are: a program may have set them, and another thread changes them for a moment while it
    loads a model; a kernel would write past the end of narrower numbers.
    """
    return torch.empty(shape, dtype=torch.float32, device="cpu")
