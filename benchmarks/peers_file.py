"""A user's GGUF file on a real text: seconds of a prefill and of a token after it, Winnow's arms and peers'.

One process at a time. In every turn each arm is started anew, warmed up and timed at all lengths, another arm first
each time, so that what drifts on the machine hits all of them.
"""

import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.peer_workers import asked_more
from winnow.evaluation.evaluate import Progress, silent
from winnow.evaluation.peers.base import Arm
from winnow.evaluation.peers.compare import Workers
from winnow.evaluation.peers.llama import FAMILY
from winnow.evaluation.peers.summary import Best, best
from winnow.evaluation.peers.weights import Weights

WARMUP, WARMUP_STEPS = 512, 4  # tokens prefilled and steps taken by every process before what is counted
FIGURES = ("prefill_s", "token_s")


@dataclass(frozen=True)
class Timed:
    """One arm in one turn: a prefill of `length` tokens of the text, and the steps over the tokens that follow.

    prefill_s: to the logits after it. seconds: of each step. cache_bytes: of the units held at the end. peak_bytes: the
    most resident memory of the process, None where the system does not tell. about: versions of what has run.
    """

    arm: str
    turn: int
    length: int
    prefill_s: float
    seconds: tuple[float, ...]
    cache_bytes: int
    peak_bytes: int | None
    about: dict[str, str]

    @property
    def token_s(self) -> float:
        """The mean of its steps."""
        return statistics.fmean(self.seconds)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> "Timed":
        return Timed(**{**found, "seconds": tuple(found["seconds"])})


@dataclass(frozen=True)
class FileRow:
    """One arm at one length: medians and half the interquartile ranges over `turns` of a prefill and of the mean of the
    steps after it, in which steps that take longer than others count.

    ratios: of the best of llama.cpp's arms in the same figure; empty where none has run.
    """

    arm: str
    length: int
    turns: int
    steps: int
    prefill_s: float
    prefill_spread_s: float
    token_s: float
    token_spread_s: float
    cache_bytes: int
    peak_bytes: int | None
    ratios: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_file(
    weights: Weights,
    arms: Sequence[Arm],
    ids: Sequence[int],
    lengths: Sequence[int],
    *,
    steps: int,
    turns: int,
    done: Collection[tuple[str, int]] = (),
    progress: Progress = silent,
) -> Iterator[list[Timed]]:
    """A list per arm and turn, with a record per length. done: arms and turns to leave out.

    ids: of the text, at least the longest length and `steps` of them; the same for all. progress: called with 1 after
    each.
    On the CPU, with as many threads as torch has here. Raises what `Workers` raises.
    """
    threads = torch.get_num_threads()
    warmup = min(WARMUP, *lengths)
    for turn in range(turns):
        shift = turn % len(arms)
        for arm in [*arms[shift:], *arms[:shift]]:
            if (arm.label, turn) in done:
                continue
            found = []
            with Workers([asked_more(arm)], threads=threads, device="cpu") as workers:
                workers.load(weights, max(lengths) + steps + 1)
                workers.require(arm.label, "follow", ids=list(ids[: warmup + WARMUP_STEPS]), prompt=warmup)
                for length in lengths:
                    told = workers.require(arm.label, "follow", ids=list(ids[: length + steps]), prompt=length)
                    del told["kept_units"]
                    seconds, about = tuple(told.pop("seconds")), workers.about[arm.label]
                    found.append(Timed(arm.label, turn, length, seconds=seconds, about=about, **told))
            yield found
            progress(1)


def summarise_file(timed: Sequence[Timed], arms: Sequence[str]) -> list[FileRow]:
    """A row per arm, in the order of `arms`, and length, for what has been measured."""
    groups: dict[tuple[str, int], list[Timed]] = {}
    for each in sorted(timed, key=lambda each: (arms.index(each.arm), each.length)):
        groups.setdefault((each.arm, each.length), []).append(each)
    medians = {key: _medians(group) for key, group in groups.items()}
    bests = {length: _best_of_llama(medians, length) for _, length in groups}
    return [
        FileRow(
            arm=arm,
            length=length,
            turns=len(group),
            steps=sum(len(each.seconds) for each in group),
            **medians[arm, length],
            prefill_spread_s=_spread([each.prefill_s for each in group]),
            token_spread_s=_spread([each.token_s for each in group]),
            cache_bytes=max(each.cache_bytes for each in group),
            peak_bytes=max((each.peak_bytes for each in group if each.peak_bytes is not None), default=None),
            ratios={name: medians[arm, length][name] / one.value for name, one in bests[length].items()},
        )
        for (arm, length), group in groups.items()
    ]


def best_of_llama(rows: Sequence[FileRow], length: int) -> dict[str, Best]:
    """The best of llama.cpp's arms after `length` tokens, by `FIGURES`; empty where none has run."""
    medians = {(row.arm, row.length): {name: getattr(row, name) for name in FIGURES} for row in rows}
    return _best_of_llama(medians, length)


def _best_of_llama(medians: Mapping[tuple[str, int], Mapping[str, float]], length: int) -> dict[str, Best]:
    own = {arm: found for (arm, at), found in medians.items() if at == length and arm.partition(":")[0] == FAMILY}
    return {name: best({arm: found[name] for arm, found in own.items()}) for name in FIGURES} if own else {}


def _medians(group: Sequence[Timed]) -> dict[str, float]:
    return {name: statistics.median(getattr(each, name) for each in group) for name in FIGURES}


def _spread(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2
