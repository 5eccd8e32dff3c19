"""From the logits of a few rows to the units that are selected: the arithmetic of the Selectors of Slow-Fast Inference.

Everything is in logarithms, on candidates [kv_heads, candidates] float32 in order of position; candidates lie side by
side, heads and rows may be views; anything else is a ValueError. No score may be NaN.

reference.py    the definitions, in torch: any device
cpu.py          with Numba what the default Selector of slow-fast reading needs: cpu_mean.py, cpu_mass.py, cpu_top.py

Source: Slow-Fast Inference, arXiv:2603.12038, with the constants of its authors' code.
"""

from types import ModuleType

import torch
from torch import Tensor

from winnow.kernels.launch import numba_missing
from winnow.kernels.select import reference
from winnow.kernels.select.reference import (
    EPS,
    LEAST,
    Fusion,
    exclude,
    fuse,
    highest_near,
    mixing_weight,
    structural_prior,
    suppress,
)

__all__ = [
    "EPS", "LEAST", "Fusion", "exclude", "fuse", "highest_near", "mass_back", "mixing_weight", "power_mean",
    "structural_prior", "suppress", "top",
]  # fmt: skip


def power_mean(logits: Tensor, alpha: float, weights: Tensor | None = None) -> Tensor:
    """log f of the rows' softmax p: f ~ (mean of p ** alpha) ** (1 / alpha), normalised; alpha 0: the geometric mean.

    logits: [kv_heads, rows, candidates], -inf where a row does not see a candidate; rows that see none count for
    nothing, and a head with only such rows has a uniform f. weights: [rows] float32, above 0, of the mean; None: all
    rows weigh the same. Returns [kv_heads, candidates], `LEAST` where f vanishes.
    """
    return _kernels(logits).power_mean(logits, alpha, weights)


def mass_back(log_weights: Tensor, count: int, scale: float | Tensor) -> Tensor:
    """`scale` times the sum of e**x over each x of [kv_heads, candidates] and the `count - 1` before it, as many as
    there are."""
    return _kernels(log_weights).mass_back(log_weights, count, scale)


def top(scores: Tensor, count: int) -> Tensor:
    """Index [kv_heads, count] int64, ascending, of the highest scores [kv_heads, candidates]; ties go to the lower
    index.

    Raises:
        ValueError: count is below 1 or above the number of candidates, or a score is NaN (on the CPU).
    """
    if not 1 <= count <= scores.shape[1]:
        raise ValueError(f"top: count={count} of {scores.shape[1]} candidates; it must be from 1 to their number")
    return _kernels(scores).top(scores, count)


def _kernels(scores: Tensor) -> ModuleType:
    """The module whose functions serve this tensor."""
    if scores.stride(-1) != 1 and scores.shape[-1] > 1:
        raise ValueError(f"select: candidates must lie side by side, not with strides {scores.stride()}")
    if scores.device.type != "cpu" or scores.dtype != torch.float32 or numba_missing() is not None:
        return reference
    from winnow.kernels.select import cpu

    return cpu
