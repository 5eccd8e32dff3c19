"""From the logits of a few rows to the units that are selected: the definitions.

Everything is in logarithms, on candidates [kv_heads, candidates] float32 in order of position.
"""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d

EPS = 1e-12
LEAST = -1e4  # in place of the logarithm of 0, so that differences are numbers
LOWEST = -1e30  # below every logarithm here, and still a number
Fusion = Literal["forward", "reverse"]


def power_mean(logits: Tensor, alpha: float, weights: Tensor | None = None) -> Tensor:
    seeing = logits.amax(-1, keepdim=True) > -math.inf
    log_p = logits.log_softmax(-1)
    each = torch.ones_like(log_p[0, :, 0]) if weights is None else weights
    total = (seeing * each[:, None]).sum(1)
    total = torch.where(total > 0, total, 1)
    if alpha == 0:
        mean = (log_p.masked_fill(~seeing, 0) * each[:, None]).sum(1) / total
    else:
        powers = (alpha * log_p + each.log()[:, None]).masked_fill(~seeing, -math.inf)
        mean = (powers.logsumexp(1) - total.log()) / alpha
    return mean.clamp_min(LOWEST).log_softmax(-1).clamp_min(LEAST)


def structural_prior(norms: Tensor) -> Tensor:
    """log r: keys of small norm, as in compression by the norm of keys, and early positions. norms, and what is
    returned: [kv_heads, candidates]."""
    count = norms.shape[-1]
    u = torch.arange(count, device=norms.device) / max(count - 1, 1)
    size = -0.5 * norms.clamp_min(EPS).log()
    place = math.log(0.6) / 0.9 * u**1.8 + 0.4 * (1 - u).clamp_min(EPS).log()
    return (size + 0.7 * place).log_softmax(-1)


def mixing_weight(log_f: Tensor, log_r: Tensor, most: float) -> Tensor:
    """The weight of r that makes |(1 - weight) f + weight r| smallest, between 0 and `most`; [kv_heads, 1]."""
    f, r = log_f.exp(), log_r.exp()
    best = ((f * f).sum(-1) - (f * r).sum(-1)) / (f - r).square().sum(-1).clamp_min(EPS)
    return best.clamp(0, most)[:, None]


def fuse(log_f: Tensor, log_r: Tensor, weight: Tensor, fusion: Fusion) -> Tensor:
    """log q, normalised, of log f and log r, [kv_heads, candidates], with the weight of r, [kv_heads, 1].

    "forward": q = (1 - weight) f + weight r, which minimises (1 - weight) KL(f|q) + weight KL(r|q); "reverse":
    q ~ f ** (1 - weight) r ** weight, which minimises the same with KL(q|.).
    """
    if fusion == "reverse":
        return ((1 - weight) * log_f + weight * log_r).log_softmax(-1)
    return torch.logaddexp((1 - weight).log() + log_f, weight.log() + log_r).log_softmax(-1)


def highest_near(scores: Tensor, reach: int) -> Tensor:
    """The highest of the scores [kv_heads, candidates] within `reach` positions of each candidate."""
    reach = min(reach, scores.shape[1])
    return max_pool1d(scores[:, None], 2 * reach + 1, stride=1, padding=reach)[:, 0]


def mass_back(log_weights: Tensor, count: int, scale: float | Tensor) -> Tensor:
    weights = scale * log_weights.exp()
    total, summed, power, part = torch.zeros_like(weights), 0, 1, weights
    while power <= count:  # `part` holds the sums over the last `power`; as few additions as `count` has binary digits
        if count & power:
            total = total + later(part, summed)
            summed += power
        part, power = part + later(part, power), 2 * power
    return total


def later(weights: Tensor, by: int) -> Tensor:
    """Everything `by` places further on, 0 before it."""
    moved = torch.zeros_like(weights)
    moved[:, by:] = weights[:, : max(0, weights.shape[1] - by)]
    return moved


def suppress(log_q: Tensor, width: int) -> Tensor:
    """Soft suppression: a candidate loses what the best one within width // 2 positions has more than it."""
    return 2 * log_q - highest_near(log_q, width // 2)


def exclude(scores: Tensor) -> Tensor:
    """Heads of a layer shun what other heads score higher."""
    share = (scores / 2.0).softmax(0)
    return scores + 0.85 * share.clamp_min(EPS).log()


def top(scores: Tensor, count: int) -> Tensor:
    return scores.sort(descending=True, stable=True).indices[:, :count].sort().values
