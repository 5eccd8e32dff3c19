"""From the attention of a few rows to the units that the next steps read: the Selectors of Slow-Fast Inference.

All work in logarithms, on candidates [kv_heads, candidates], and return scores of which the highest are selected.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d

EPS = 1e-12
LEAST = -1e4  # in place of the logarithm of 0, so that differences are numbers
Fusion = Literal["forward", "reverse"]


@dataclass(frozen=True)
class Evidence:
    """What is known of the candidates of one layer, which are in order of position.

    logits: [kv_heads, rows, candidates] float32, of all rows that vote, -inf where one does not see a candidate. norms:
    [kv_heads, candidates] float32, of the keys; None where no selector wants them. selected: [kv_heads, candidates]
    bool, the last selection; None where nobody asks.
    """

    logits: Tensor
    norms: Tensor | None = None
    selected: Tensor | None = None


class Selector(Protocol):
    """norms, memory: whether it wants `Evidence.norms` and `Evidence.selected`."""

    @property
    def norms(self) -> bool: ...

    @property
    def memory(self) -> bool: ...

    def scores(self, evidence: Evidence) -> Tensor:
        """[kv_heads, candidates] float32."""


@dataclass(frozen=True)
class Attention:
    """The power mean of the rows' attention, and nothing else. alpha: see `power_mean`."""

    alpha: float = 0.5
    norms = False
    memory = False

    def scores(self, evidence: Evidence) -> Tensor:
        return power_mean(evidence.logits, self.alpha)


@dataclass(frozen=True)
class Pooled:
    """The power mean, and of it the maximum over `width` positions around each candidate, an odd number: the neighbours
    of an attended token are what comes next when an answer is copied."""

    alpha: float = 0.5
    width: int = 17
    norms = False
    memory = False

    def scores(self, evidence: Evidence) -> Tensor:
        return highest_near(power_mean(evidence.logits, self.alpha), self.width // 2)


@dataclass(frozen=True)
class AlphaFair:
    """The authors' Selector: power mean, structural prior, suppression of neighbours, exclusion between heads.

    prior: small keys and early positions are preferred. suppression: a candidate loses where a better one stands near.
    cross_head: heads prefer what the other heads do not. fusion: of attention and prior, see `fuse`.

    Source: the authors' code of Slow-Fast Inference, arXiv:2603.12038.
    """

    alpha: float = 0.5
    prior: bool = True
    suppression: bool = True
    cross_head: bool = True
    fusion: Fusion = "forward"
    memory = False

    @property
    def norms(self) -> bool:
        return self.prior

    def scores(self, evidence: Evidence) -> Tensor:
        log_q = power_mean(evidence.logits, self.alpha)
        if self.prior:
            assert evidence.norms is not None
            log_r = structural_prior(evidence.norms)
            most = 0.25 if evidence.logits.shape[1] > 1 else 0.35
            log_q = fuse(log_q, log_r, mixing_weight(log_q, log_r, most), self.fusion)
        if self.suppression:
            log_q = suppress(log_q, width=32)
        if self.cross_head and len(log_q) > 2:
            log_q = exclude(log_q)
        return log_q


@dataclass(frozen=True)
class Persist:
    """A prior of what was selected last and of recency, fused with the power mean, then weak suppression.

    It asks whether memory of the last choice helps. Ours.
    """

    alpha: float = 0.5
    fusion: Fusion = "forward"
    norms = True
    memory = True

    def scores(self, evidence: Evidence) -> Tensor:
        assert evidence.norms is not None
        assert evidence.selected is not None
        log_r = memory_prior(evidence.norms, evidence.selected)
        weight = torch.full_like(log_r[:, :1], 0.25)
        return suppress(fuse(power_mean(evidence.logits, self.alpha), log_r, weight, self.fusion), width=8)


def power_mean(logits: Tensor, alpha: float) -> Tensor:
    """log f of the rows' softmax p: f ~ (mean of p ** alpha) ** (1 / alpha), normalised; alpha 0: the geometric mean.

    logits: [kv_heads, rows, candidates]; rows that see none count for nothing. Returns [kv_heads, candidates].
    """
    seeing = logits.amax(-1, keepdim=True) > -math.inf
    log_p = logits.log_softmax(-1)
    rows = seeing.sum(1).clamp_min(1)
    if alpha == 0:
        mean = log_p.masked_fill(~seeing, 0).sum(1) / rows
    else:
        mean = ((alpha * log_p).masked_fill(~seeing, -math.inf).logsumexp(1) - rows.log()) / alpha
    return mean.log_softmax(-1).clamp_min(LEAST)


def structural_prior(norms: Tensor) -> Tensor:
    """log r: keys of small norm, as in compression by the norm of keys, and early positions. norms, and what is
    returned: [kv_heads, candidates]."""
    count = norms.shape[-1]
    u = torch.arange(count, device=norms.device) / max(count - 1, 1)
    size = -0.5 * norms.clamp_min(EPS).log()
    place = math.log(0.6) / 0.9 * u**1.8 + 0.4 * (1 - u).clamp_min(EPS).log()
    return (size + 0.7 * place).log_softmax(-1)


def memory_prior(norms: Tensor, selected: Tensor) -> Tensor:
    """log r: keys of small norm, what was selected last, and late positions, over a scale of 1024 tokens."""
    count = norms.shape[-1]
    distance = torch.arange(count, 0, -1, device=norms.device)  # from the first recent token
    place = 0.05 + 0.5 * selected + 0.5 * 2.0 ** (-distance / 1024)
    return (-0.5 * norms.clamp_min(EPS).log() + place.log()).log_softmax(-1)


def mixing_weight(log_f: Tensor, log_r: Tensor, most: float) -> Tensor:
    """The weight of r that makes |(1 - weight) f + weight r| smallest, between 0 and `most`; [kv_heads, 1]."""
    f, r = log_f.exp(), log_r.exp()
    best = ((f * f).sum(-1) - (f * r).sum(-1)) / (f - r).square().sum(-1).clamp_min(EPS)
    return best.clamp(0, most)[:, None]


def fuse(log_f: Tensor, log_r: Tensor, weight: Tensor, fusion: Fusion) -> Tensor:
    """log q, normalised. "forward": q = (1 - weight) f + weight r, which minimises (1 - weight) KL(f|q) +
    weight KL(r|q); "reverse": q ~ f ** (1 - weight) r ** weight, which minimises the same with KL(q|.)."""
    if fusion == "reverse":
        return ((1 - weight) * log_f + weight * log_r).log_softmax(-1)
    return torch.logaddexp((1 - weight).log() + log_f, weight.log() + log_r).log_softmax(-1)


def suppress(log_q: Tensor, width: int) -> Tensor:
    """Soft suppression: a candidate loses what the best one within width // 2 positions has more than it."""
    return 2 * log_q - highest_near(log_q, width // 2)


def exclude(scores: Tensor) -> Tensor:
    """Heads of a layer shun what other heads score higher."""
    share = (scores / 2.0).softmax(0)
    return scores + 0.85 * share.clamp_min(EPS).log()


def highest_near(scores: Tensor, reach: int) -> Tensor:
    """The highest of the scores [kv_heads, candidates] within `reach` positions of each candidate."""
    return max_pool1d(scores[:, None], 2 * reach + 1, stride=1, padding=reach)[:, 0]


def top(scores: Tensor, count: int) -> Tensor:
    """Index [kv_heads, count], ascending, of the highest scores; ties go to the lower index."""
    return scores.sort(descending=True, stable=True).indices[:, :count].sort().values
