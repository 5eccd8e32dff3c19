"""Prefill under plans that skip what rows of a prompt read: time against full attention's, and how close it stays."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.speed import timed
from benchmarks.steps import rotated
from winnow import LLM, Plan, Session, Stats
from winnow.evaluation.evaluate import Progress, silent

FULL = str(Plan())
PLANS = (
    FULL,
    "minference",
    "minference(slash=100)",
    "minference(pattern='a_shape', vertical=64, slash=1024)",
    "xattention",
    "flexprefill",
)


@dataclass(frozen=True)
class Skipped:
    """A plan after a prompt of `length` tokens. seconds: of its prefill, per turn. pairs: of a query and a key, read in
    layers where the plan chooses, and of all there. kl, kl_most: KL(full || plan) of the next token in nats, the mean
    and the most over the tokens after the prompt; None: the text is random."""

    plan: str
    length: int
    seconds: tuple[float, ...]
    pairs_read: int
    pairs_full: int
    kl: float | None
    kl_most: float | None


@dataclass(frozen=True)
class SparseRow:
    """A plan at a length. median_s, min_s: of a prefill; speedup: full attention's seconds over its own in the same
    turn, the median turn's, the least and the most. pairs: the share that is read; None: nothing is chosen."""

    plan: str
    length: int
    median_s: float
    min_s: float
    speedup: float
    speedup_low: float
    speedup_high: float
    pairs: float | None
    kl: float | None
    kl_most: float | None


def measure_sparse(
    llm: LLM,
    plans: Sequence[Plan],
    ids: Sequence[int],
    lengths: Sequence[int],
    *,
    tail: int,
    repeats: int,
    progress: Progress = silent,
) -> Iterator[list[Skipped]]:
    """Per length all plans, full attention the first of them, in turns, after one that is not counted.

    tail: tokens of the text after the prompt along which they are compared; 0: they are not. progress: called with the
    tokens of every prompt.
    """
    for length in lengths:
        seconds: dict[str, list[float]] = {str(plan): [] for plan in plans}
        known: dict[str, tuple[Stats, Tensor]] = {}
        for turn in range(repeats + 1):
            for name in rotated(list(seconds), turn):
                with llm.session(plan=name, max_tokens=tail + 1) as session:
                    took = timed(partial(session.feed, ids[:length], progress=progress), llm.device)
                    if turn:
                        seconds[name].append(took)
                    else:
                        known[name] = session.stats, _following(session, ids[length : length + tail])
        yield [_skipped(name, length, seconds[name], *known[name], known[FULL][1]) for name in seconds]


def _following(session: Session, tail: Sequence[int]) -> Tensor:
    """Log-probabilities after a prompt and each of some tokens but the last, [tokens, vocab]."""
    rows = [session.logits, *(session.feed([token])[0] for token in tail[:-1])]
    return torch.stack(rows[: len(tail)]).log_softmax(-1) if tail else torch.empty(0, 1)


def _skipped(name: str, length: int, seconds: list[float], stats: Stats, found: Tensor, full: Tensor) -> Skipped:
    kl = (full.exp() * (full - found)).sum(-1).tolist()
    figures = (statistics.mean(kl), max(kl)) if kl else (None, None)
    return Skipped(name, length, tuple(seconds), stats.pairs_read, stats.pairs_full, *figures)


def summarise_sparse(measured: Sequence[Skipped]) -> list[SparseRow]:
    """A row per plan and length."""
    full = {each.length: each for each in measured if each.plan == FULL}
    rows = []
    for each in measured:
        faster = sorted(its / mine for mine, its in zip(each.seconds, full[each.length].seconds, strict=True))
        times = (statistics.median(each.seconds), min(each.seconds))
        ratios = (statistics.median(faster), faster[0], faster[-1])
        pairs = each.pairs_read / each.pairs_full if each.pairs_full else None
        rows.append(SparseRow(each.plan, each.length, *times, *ratios, pairs, each.kl, each.kl_most))
    return rows
