"""Weights that are no numbers, found once when they are loaded."""

from collections.abc import Iterable

import torch
from torch import Tensor

from winnow.errors import ModelError


@torch.no_grad()
def check_finite(named: Iterable[tuple[str, Tensor]], where: str) -> None:
    """Raise ModelError naming the first tensor that holds NaN or infinity. One pass over each, nothing is copied."""
    for name, tensor in named:
        # The extremes are finite only if every value is: NaN goes through both.
        if tensor.numel() and tensor.is_floating_point() and not _finite(*torch.aminmax(tensor)):
            raise ModelError(f"{where}: the weight {name} holds values that are not finite; download it again")


def _finite(least: Tensor, most: Tensor) -> bool:
    return bool(torch.isfinite(least) & torch.isfinite(most))
