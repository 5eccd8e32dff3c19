"""Decode steps with another process at work and without: on all threads, on one, and as Winnow watches them."""

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from winnow import LLM, SamplingParams
from winnow.evaluation.evaluate import Progress, silent
from winnow.runtime.threads import Threads

WATCHED, ALL, ONE = ARMS = ("watched", "all threads", "one thread")
WARMUP = 8  # steps before the first turn of an arm
# It ends when the process that has started it is gone.
SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


@dataclass(frozen=True)
class Turn:
    """The steps of one arm. busy: whether others were at work meanwhile; fewer: steps on fewer threads than torch's."""

    arm: str
    busy: bool
    seconds: tuple[float, ...]
    fewer: int

    @property
    def tpot_s(self) -> float:
        return statistics.mean(self.seconds)


@dataclass(frozen=True)
class BusyRow:
    """An arm over its turns: seconds per token, medians of the turns' means, and half their range."""

    arm: str
    quiet_s: float
    quiet_spread_s: float
    busy_s: float
    busy_spread_s: float
    quiet_of_all: float
    slowdown: float
    fewer_quiet: float
    fewer_busy: float


def measure_busy(
    llm: LLM, length: int, *, new: int, repeats: int, processes: int, progress: Progress = silent
) -> Iterator[list[Turn]]:
    """Per turn, every arm alone and beside busy processes, `new` tokens each after a prompt of `length` random tokens.

    Each begins anew: what the watched arm knows of other processes it finds in the same steps. progress: called with 1
    after every arm.
    """
    source = torch.Generator().manual_seed(0)
    ids = torch.randint(llm.decoder.shape.vocab, (length,), generator=source).tolist()
    for arm in ARMS:
        _turn(llm, arm, ids, WARMUP, 0)
    for turn in range(repeats):
        taken = []
        for busy in (False, True):
            for arm in (*ARMS[turn % 3 :], *ARMS[: turn % 3]):
                taken.append(_turn(llm, arm, ids, new, processes if busy else 0))
                progress(1)
        yield taken


def summarise_busy(turns: Sequence[Turn]) -> list[BusyRow]:
    """A row per arm."""

    def of(arm: str, *, busy: bool) -> list[Turn]:
        return [turn for turn in turns if (turn.arm, turn.busy) == (arm, busy)]

    def ratio(mine: Sequence[Turn], theirs: Sequence[Turn]) -> float:
        return statistics.median(a.tpot_s / b.tpot_s for a, b in zip(mine, theirs, strict=True))

    rows = []
    for arm in ARMS:
        quiet, busy = of(arm, busy=False), of(arm, busy=True)
        figures: list[Any] = []
        for each in (quiet, busy):
            means = [turn.tpot_s for turn in each]
            figures += [statistics.median(means), (max(means) - min(means)) / 2]
        shares = [sum(turn.fewer for turn in each) / sum(len(turn.seconds) for turn in each) for each in (quiet, busy)]
        everything = of(ALL, busy=False)
        rows.append(BusyRow(arm, *figures, ratio(quiet, everything), ratio(busy, everything), *shares))
    return rows


@contextmanager
def spinning(processes: int) -> Iterator[None]:
    """Within, so many other processes never rest."""
    with ExitStack() as stack:
        for _ in range(processes):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-IS", "-c", SPIN]))
            stack.callback(process.kill)
        yield


@contextmanager
def _on(llm: LLM, arm: str) -> Iterator[Threads]:
    """Within, kernels run as an arm says; what watches them, or would."""
    threads, watch = torch.get_num_threads(), Threads()
    llm.decoder.threads = watch if arm == WATCHED else None
    torch.set_num_threads(1 if arm == ONE else threads)
    try:
        yield watch
    finally:
        torch.set_num_threads(threads)
        llm.decoder.threads = Threads()


def _turn(llm: LLM, arm: str, ids: list[int], new: int, processes: int) -> Turn:
    """One request from its first token on."""
    seconds, fewer = [], 0
    with llm.engine() as engine, _on(llm, arm) as watch:
        engine.add(ids, SamplingParams(max_tokens=new + 1, ignore_eos=True), plan="full")
        while not engine.step():
            pass
        with spinning(processes):
            for _ in range(new):
                fewer += arm == ONE or 0 < watch.used < torch.get_num_threads()
                start = time.perf_counter()
                engine.step()
                seconds.append(time.perf_counter() - start)
    return Turn(arm, processes > 0, tuple(seconds), fewer)
