"""From the logits of a few rows to the units that are selected: the arithmetic of the Selectors of Slow-Fast Inference.

Everything is in logarithms, on candidates [kv_heads, candidates] float32 in order of position; candidates lie side by
side, heads and rows may be views; anything else is a ValueError. No score may be NaN.

reference.py    the definitions, in torch: any device
cpu.py          the same names with Numba: cpu_mean.py, cpu_fuse.py, cpu_near.py, cpu_mass.py, cpu_top.py

Source: Slow-Fast Inference, arXiv:2603.12038, with the constants of its authors' code.
"""

from types import ModuleType

import torch
from torch import Tensor

from winnow.kernels.launch import numba_missing
from winnow.kernels.select import reference
from winnow.kernels.select.reference import EPS, LEAST, Fusion

__all__ = [
    "EPS", "LEAST", "Fusion", "exclude", "fuse", "highest_near", "mass_back", "mixing_weight", "power_mean",
    "structural_prior", "suppress", "top",
]  # fmt: skip


def power_mean(logits: Tensor, alpha: float) -> Tensor:
    """log f of the rows' softmax p: f ~ (mean of p ** alpha) ** (1 / alpha), normalised; alpha 0: the geometric mean.

    logits: [kv_heads, rows, candidates], -inf where a row does not see a candidate; rows that see none count for
    nothing, and a head with only such rows has a uniform f. Returns [kv_heads, candidates], `LEAST` where f vanishes.
    """
    return _kernels(logits).power_mean(logits, alpha)


def structural_prior(norms: Tensor) -> Tensor:
    """log r: keys of small norm, as in compression by the norm of keys, and early positions. norms, and what is
    returned: [kv_heads, candidates]."""
    return _kernels(norms).structural_prior(norms)


def mixing_weight(log_f: Tensor, log_r: Tensor, most: float) -> Tensor:
    """The weight of r that makes |(1 - weight) f + weight r| smallest, between 0 and `most`; [kv_heads, 1]."""
    return _kernels(log_f, log_r).mixing_weight(log_f, log_r, most)


def fuse(log_f: Tensor, log_r: Tensor, weight: Tensor, fusion: Fusion) -> Tensor:
    """log q, normalised, of log f and log r, [kv_heads, candidates], with the weight of r, [kv_heads, 1].

    "forward": q = (1 - weight) f + weight r, which minimises (1 - weight) KL(f|q) + weight KL(r|q); "reverse":
    q ~ f ** (1 - weight) r ** weight, which minimises the same with KL(q|.).
    """
    return _kernels(log_f, log_r).fuse(log_f, log_r, weight, fusion)


def highest_near(scores: Tensor, reach: int) -> Tensor:
    """The highest of the scores [kv_heads, candidates] within `reach` positions of each candidate."""
    return _kernels(scores).highest_near(scores, reach)


def mass_back(log_weights: Tensor, count: int, scale: float) -> Tensor:
    """`scale` times the sum of e**x over each x of [kv_heads, candidates] and the `count - 1` before it, as many as
    there are."""
    return _kernels(log_weights).mass_back(log_weights, count, scale)


def suppress(log_q: Tensor, width: int) -> Tensor:
    """Soft suppression: a candidate loses what the best one within width // 2 positions has more than it."""
    return _kernels(log_q).suppress(log_q, width)


def exclude(scores: Tensor) -> Tensor:
    """Heads of a layer shun what other heads score higher."""
    return _kernels(scores).exclude(scores)


def top(scores: Tensor, count: int) -> Tensor:
    """Index [kv_heads, count] int64, ascending, of the highest scores [kv_heads, candidates]; ties go to the lower
    index.

    Raises:
        ValueError: count is below 1 or above the number of candidates, or a score is NaN (on the CPU).
    """
    if not 1 <= count <= scores.shape[1]:
        raise ValueError(f"top: count={count} of {scores.shape[1]} candidates; it must be from 1 to their number")
    return _kernels(scores).top(scores, count)


def _kernels(*tensors: Tensor) -> ModuleType:
    """The module whose functions serve these tensors, all of one shape."""
    if len({t.shape for t in tensors}) > 1 or any(t.stride(-1) != 1 and t.shape[-1] > 1 for t in tensors):
        got = ", ".join(f"{tuple(t.shape)} with strides {t.stride()}" for t in tensors)
        raise ValueError(f"select: scores must have one shape and candidates lie side by side, not {got}")
    if any(t.device.type != "cpu" or t.dtype != torch.float32 for t in tensors) or numba_missing() is not None:
        return reference
    from winnow.kernels.select import cpu

    return cpu
