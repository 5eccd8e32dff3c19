"""One decode step after many cached tokens: plans and peers, the same weights and the same units.

Caches are filled with random units instead of prefilling, as in `benchmarks.decode`. One process at a time: each is
started, filled, timed and ended before the next, so that memory holds one arm's cache only.
"""

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peer_workers import asked_more
from winnow.evaluation.evaluate import Progress, silent
from winnow.evaluation.peers.base import Arm
from winnow.evaluation.peers.compare import Workers
from winnow.evaluation.peers.weights import Weights
from winnow.policies.base import ModelShape


@dataclass(frozen=True)
class Turn:
    """The steps of one arm in one process. seconds: of each; logits: after the first step, [vocab].
    about: versions of what has run."""

    arm: str
    seconds: tuple[float, ...]
    cache_bytes: int
    kept_units: int | None
    logits: np.ndarray
    about: dict[str, str]


def measure_steps(
    weights: Weights,
    arms: Sequence[Arm],
    shape: ModelShape,
    length: int,
    *,
    repeats: int,
    warmup: int,
    turns: int,
    progress: Progress = silent,
) -> Iterator[Turn]:
    """All arms, `turns` times over, each time `repeats` steps after `warmup` ones; progress: called with 1 after each
    arm.

    On the CPU, with as many threads as torch has here. Raises what `Workers` raises.
    """
    threads = torch.get_num_threads()
    with _units(shape, length, getattr(torch, weights.dtype)) as units:
        for _ in range(turns):
            for arm in arms:
                with Workers([asked_more(arm)], threads=threads, device="cpu") as workers:
                    about = dict(workers.about[arm.label])
                    workers.load(weights, length + warmup + repeats + 2)
                    request = {"length": length, "units": units, "warmup": warmup, "repeats": repeats}
                    told = workers.require(arm.label, "steps", **request)
                logits = np.array(told["logits"], np.float32)
                yield Turn(arm.label, tuple(told["seconds"]), told["cache_bytes"], told["kept_units"], logits, about)
                progress(1)


@contextmanager
def _units(shape: ModelShape, length: int, dtype: torch.dtype) -> Iterator[str]:
    """A file of the units that `benchmarks.decode.random_units` draws, [2, kv_heads, length, head_dim] float32."""
    size = (2, shape.kv_heads, length, shape.head_dim)
    units = torch.empty(size, dtype=dtype).normal_(generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory(prefix="winnow-peers-") as name:
        path = Path(name) / "units.npy"
        np.save(path, units.float().numpy())
        yield str(path)


def summarise_steps(found: Sequence[Turn], beside: Sequence[str]) -> list[dict[str, Any]]:
    """A record per arm: mean, median and half the range between the quartiles of all its steps, and ratios of means to
    those of `beside`, so that slow steps among fast ones count.

    off: the largest difference of its first logits from those of the first arm of `beside`.
    """
    by_arm = {arm: [turn for turn in found if turn.arm == arm] for arm in dict.fromkeys(turn.arm for turn in found)}
    seconds = {arm: [each for turn in turns for each in turn.seconds] for arm, turns in by_arm.items()}
    means = {arm: statistics.fmean(each) for arm, each in seconds.items()}
    records = []
    for arm, turns in by_arm.items():
        low, _, high = statistics.quantiles(seconds[arm], n=4, method="inclusive")
        first = by_arm.get(beside[0])
        records.append(
            {
                "arm": arm,
                "about": turns[0].about,
                "mean_s": means[arm],
                "median_s": statistics.median(seconds[arm]),
                "spread_s": (high - low) / 2,
                "seconds": seconds[arm],
                "cache_bytes": turns[0].cache_bytes,
                "kept_units": turns[0].kept_units,
                "ratios": {other: means[arm] / means[other] for other in beside if other in means},
                "off": float(abs(turns[0].logits - first[0].logits).max()) if first else None,
            }
        )
    return records
