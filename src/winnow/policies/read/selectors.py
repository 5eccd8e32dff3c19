"""From the attention of a few rows to the units that the next steps read: the Selectors of Slow-Fast Inference.

All work in logarithms, on candidates [kv_heads, candidates], and return scores of which the highest are selected.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from winnow.kernels.select import (
    EPS,
    Fusion,
    exclude,
    fuse,
    highest_near,
    mass_back,
    mixing_weight,
    power_mean,
    structural_prior,
    suppress,
)

FURTHER = 3


@dataclass(frozen=True)
class Last:
    """Of the units selected before: index [kv_heads, units] among the candidates, and scores alike; -inf for those that
    are no candidates any more, whose index says nothing."""

    index: Tensor
    scores: Tensor


@dataclass(frozen=True)
class Evidence:
    """What is known of the units of one layer, which are in order of position, when some of them are selected.

    seen: [kv_heads, rows, units] float32, the logits of all rows that vote, -inf where one does not see a unit.
    candidates: the units that can be selected. norms: [kv_heads, candidates] float32, of the keys; None where no
    selector wants them. last: what was selected before; None where nobody asks, or nothing was. behind: [rows], tokens
    from each row's to the newest row's; None: all are the newest token's.
    """

    seen: Tensor
    candidates: slice
    norms: Tensor | None = None
    last: Last | None = None
    behind: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """[kv_heads, rows, candidates]."""
        return self.seen[..., self.candidates]


class Selector(Protocol):
    """norms, memory: whether it wants `Evidence.norms` and `Evidence.last`."""

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
class Peaks:
    """The attention that all rows together pay to a unit and to the `width - 1` before it: what follows an attended
    token is what comes next when an answer is copied. What was selected last keeps its score, times `decay`.

    A share of it, `far`, counts `FURTHER` times as far: what is attended to most is followed to the end of a long
    copy, and the others keep their places. A row that stands `half_life` tokens before another counts half as much;
    None: all count alike. A prompt's last rows ask its question, and those before them still read the text.

    Unlike `Pooled` it takes attention weights as they are, and not as shares of what the candidates get: a row that
    looks at nothing but recent units has nothing to say, and does not replace what an earlier one found. Ours.
    """

    width: int = 13
    decay: float = 0.9
    far: float = 0.25
    half_life: int | None = 32
    norms = False

    @property
    def memory(self) -> bool:
        return self.decay > 0

    def scores(self, evidence: Evidence) -> Tensor:
        weights = None
        if self.half_life is not None and evidence.behind is not None:
            weights = 0.5 ** (evidence.behind.float() / self.half_life)
        total = evidence.seen.shape[1] if weights is None else weights.sum()
        mean = power_mean(evidence.seen, alpha=1.0, weights=weights)[:, evidence.candidates]
        now = mass_back(mean, self.width, scale=total)
        if self.far:
            now += mass_back(mean, FURTHER * self.width, scale=self.far * total)
        if evidence.last is not None:
            now.scatter_reduce_(1, evidence.last.index, self.decay * evidence.last.scores, reduce="amax")
        return now


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
        selected = torch.zeros_like(evidence.norms)
        if evidence.last is not None:
            held = (evidence.last.scores > -math.inf).to(selected.dtype)
            selected.scatter_reduce_(1, evidence.last.index, held, reduce="amax")
        log_r = memory_prior(evidence.norms, selected)
        weight = torch.full_like(log_r[:, :1], 0.25)
        return suppress(fuse(power_mean(evidence.logits, self.alpha), log_r, weight, self.fusion), width=8)


def memory_prior(norms: Tensor, selected: Tensor) -> Tensor:
    """log r: keys of small norm, what was selected last, and late positions, over a scale of 1024 tokens."""
    count = norms.shape[-1]
    distance = torch.arange(count, 0, -1, device=norms.device)  # from the first recent token
    place = 0.05 + 0.5 * selected + 0.5 * 2.0 ** (-distance.float() / 1024)
    return (-0.5 * norms.clamp_min(EPS).log() + place.log()).log_softmax(-1)
