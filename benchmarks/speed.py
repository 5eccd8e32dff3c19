"""Timing of two ways to do the same thing, in turn, and what the machine could do at best."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from winnow import Session
from winnow.evaluation.evaluate import Progress, silent

STOCK = "transformers"


@dataclass(frozen=True)
class Rates:
    """What this machine reaches: bytes read and written by a copy, bytes read by a sum, a GEMM."""

    copy_gb_s: float
    read_gb_s: float
    gemm_gflop_s: float


@dataclass(frozen=True)
class Measurement:
    """One arm at one length.

    length: tokens cached before the decode step, or tokens prefilled. seconds: of each repeat, in order. read_bytes:
    weights and units that have to be read at least once; flops: of the matrix products, attention included.
    """

    arm: str
    length: int
    seconds: tuple[float, ...]
    read_bytes: int
    flops: int

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread_s(self) -> float:
        """Half the range between the quartiles."""
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / 2

    def floor_s(self, rates: Rates) -> float:
        """The least time on this machine: reading the bytes or multiplying, whichever takes longer."""
        return max(self.read_bytes / 1e9 / rates.read_gb_s, self.flops / 1e9 / rates.gemm_gflop_s)

    def ratio_to(self, other: "Measurement") -> float:
        """The median over the turns, each against the other arm's in the same turn."""
        return statistics.median(mine / its for mine, its in zip(self.seconds, other.seconds, strict=True))

    def to_dict(self, rates: Rates, stock: "Measurement") -> dict[str, Any]:
        """The record behind a line of the table."""
        return {
            **asdict(self),
            "median_s": self.median_s,
            "spread_s": self.spread_s,
            "ratio_to_stock": self.median_s / stock.median_s,
            "gb_s": self.read_bytes / 1e9 / self.median_s,
            "gflop_s": self.flops / 1e9 / self.median_s,
            "floor_s": self.floor_s(rates),
            "times_floor": self.median_s / self.floor_s(rates),
        }


def alternate(
    arms: Mapping[str, Callable[[], object]], *, repeats: int, warmup: int, device: torch.device
) -> dict[str, tuple[float, ...]]:
    """Seconds of each repeat of each arm. Arms take turns, so that a slow minute of the machine is shared."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(warmup + repeats):
        for name, run in arms.items():
            elapsed = timed(run, device)
            if turn >= warmup:
                seconds[name].append(elapsed)
    return {name: tuple(each) for name, each in seconds.items()}


def timed(run: Callable[[], object], device: torch.device) -> float:
    """Wall-clock seconds of one call, until the device is done."""
    _synchronise(device)
    start = time.perf_counter()
    run()
    _synchronise(device)
    return time.perf_counter() - start


def timed_feed(session: Session, prompt: list[int], after: list[int], progress: Progress = silent) -> list[float]:
    """Seconds of the prompt, then of each token after it, until the device is done.

    progress: called with the number of prompt tokens just processed.
    """
    marks = [time.perf_counter()]
    session.feed(prompt, progress=progress).sum().item()  # an item is a wait for the device
    marks.append(time.perf_counter())
    for token in after:
        session.feed([token]).sum().item()
        marks.append(time.perf_counter())
    return [later - earlier for earlier, later in pairwise(marks)]


def machine_rates(dtype: torch.dtype, device: torch.device, *, size: int = 2**27, side: int = 2048) -> Rates:
    """The best of some passes of each: copy and sum of `size` float32, product of two `side` x `side` matrices."""
    numbers, target = torch.ones(size, device=device), torch.empty(size, device=device)
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    copy = _best(lambda: target.copy_(numbers), device)
    read = _best(numbers.sum, device)
    gemm = _best(lambda: F.linear(a, b), device)
    return Rates(2 * numbers.nbytes / 1e9 / copy, numbers.nbytes / 1e9 / read, 2 * side**3 / 1e9 / gemm)


def typical(samples: Sequence[Rates]) -> Rates:
    """The median of each rate; shared machines have fast and slow minutes."""
    return Rates(*(statistics.median(each) for each in zip(*(asdict(one).values() for one in samples), strict=True)))


def _best(run: Callable[[], Tensor], device: torch.device) -> float:
    return min(timed(run, device) for _ in range(6))


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
