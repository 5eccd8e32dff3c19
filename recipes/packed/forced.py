"""Logits of a text from several processes, and how far each is from the reference's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.peer_workers import asked_more

from winnow.evaluation.peers.base import Arm
from winnow.evaluation.peers.compare import Workers
from winnow.evaluation.peers.weights import Weights

ROWS = 128  # places compared at a time


@dataclass(frozen=True)
class Job:
    """An arm in a dtype. fed: its logits come from decode steps, a token at a time, and not from a whole forward."""

    arm: Arm
    dtype: str
    fed: bool = False

    @property
    def label(self) -> str:
        return f"{self.arm.label}, {self.dtype}{', token by token' if self.fed else ''}"


@dataclass(frozen=True)
class Forced:
    """A job against the reference on the `tokens` tokens of a text, or of several, that another one precedes.

    top1: share of the places where both find the same token likeliest. kl: mean KL(reference || job), nll and
    nll_reference: mean negative log-likelihood of the text's own next token; nats.
    """

    job: str
    kind: str
    tokens: int
    top1: float
    kl: float
    nll: float
    nll_reference: float

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll)

    @property
    def ratio(self) -> float:
        """Of the reference's perplexity."""
        return math.exp(self.nll - self.nll_reference)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "perplexity": self.perplexity, "perplexity_ratio": self.ratio}


def measure(
    weights: Weights,
    reference: Job,
    jobs: Sequence[Job],
    texts: dict[str, list[int]],
    scratch: Path,
    done: Callable[[str], None] = lambda what: None,
) -> Iterator[Forced]:
    """Every job on every text, a text and a process at a time. texts: token ids by kind; done: called after each.

    scratch: a directory that takes the logits of two jobs on one text, [tokens, vocab] float32 each.
    Raises what `Workers` raises.
    """
    for kind, ids in texts.items():
        expected = _logits(weights, reference, ids, scratch / "reference.npy")
        done(f"{kind}: {reference.label}")
        for job in jobs:
            yield compare(job.label, kind, expected, _logits(weights, job, ids, scratch / "job.npy"), ids)
            done(f"{kind}: {job.label}")


def compare(job: str, kind: str, reference: np.ndarray, other: np.ndarray, ids: Sequence[int]) -> Forced:
    """reference, other: logits after each of `ids`, [tokens, vocab]; the last ones predict nothing known."""
    totals, places = torch.zeros(4, dtype=torch.float64), len(ids) - 1
    for start in range(0, places, ROWS):
        stop = min(start + ROWS, places)
        expected, found = (_log_probs(each[start:stop]) for each in (reference, other))
        following = torch.tensor(ids[start + 1 : stop + 1])[:, None]
        kl = (expected.exp() * (expected - found)).sum()
        same = (expected.argmax(-1) == found.argmax(-1)).sum().double()
        totals += torch.stack([same, kl, *(-each.gather(-1, following).sum() for each in (found, expected))])
    return Forced(job, kind, places, *(totals / places).tolist())


def over_all(found: Sequence[Forced], kind: str = "all") -> list[Forced]:
    """A row per job over all its texts, each token counting alike."""
    rows = []
    for job in dict.fromkeys(each.job for each in found):
        own = [each for each in found if each.job == job]
        tokens = sum(each.tokens for each in own)
        means = {
            name: sum(each.tokens * getattr(each, name) for each in own) / tokens
            for name in ("top1", "kl", "nll", "nll_reference")
        }
        rows.append(Forced(job, kind, tokens, **means))
    return rows


def _logits(weights: Weights, job: Job, ids: list[int], out: Path) -> np.ndarray:
    """A file that is mapped, not read: it is written anew by the next job."""
    with Workers([asked_more(job.arm)], threads=torch.get_num_threads(), device="cpu") as workers:
        workers.load(replace(weights, dtype=job.dtype), len(ids) + 1)
        workers.require(job.arm.label, "logits", ids=ids, out=str(out), prompt=1 if job.fed else None)
    return np.load(out, mmap_mode="r")


def _log_probs(logits: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(logits)).double().log_softmax(-1)
