"""On how many threads kernels run in decode steps: on all, and on fewer while something else is at work on the machine.

The threads of a kernel meet some hundred times in a step. Where one of them shares its core with another process, the
others wait until it has had its turn, every time, and what waits spins, which takes turns from whoever it waits for.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from winnow.kernels.launch import at_most

STEPS = 3  # steps whose median is compared: one that reads more than the others does not count
MISSING = 0.25  # cores that threads did not get, though they were busy or spinning: somebody else had them
BETTER = 0.9  # of the time with more threads that fewer have to take
SPENT = 0.02  # the share of time that trials may take beyond what their steps would have taken


class _Trial(NamedTuple):
    """What is compared with the number of threads being tried: another number, and what steps took with it.

    median, total: seconds.
    """

    threads: int
    median: float
    total: float


class Threads:
    """Finds the number of threads that decode steps are fastest with, from steps alone.

    While threads get the cores that they are given, which the process's CPU time tells, nothing is tried. Where they do
    not, a few steps run on as many threads as can take the work in whole turns on the cores that were got, and if these
    steps are faster it stays so; from then on all threads are tried again now and then. Whatever a trial of the slower
    number costs, the next one comes only when that is little of the time since. Steps are compared with steps of as
    many rows. Kernels cut their work as before, so results do not depend on any of it.

    clock, spent: seconds, of the day and of CPU time of all threads of this process; what others than kernels spend
    makes it see less. used: threads of the next step.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, spent: Callable[[], float] = time.process_time
    ) -> None:
        self._clock, self._spent = clock, spent
        self.used = 0
        self._most, self._rows = 0, 0
        self._steps: deque[tuple[float, float]] = deque(maxlen=STEPS)  # seconds and CPU seconds
        self._trial: _Trial | None = None
        self._due = float("-inf")  # when another number may be tried

    @contextmanager
    def decoding(self, rows: int) -> Iterator[None]:
        """A decode step of so many rows; within, kernels run on the threads that it should have, at most torch's."""
        most = torch.get_num_threads()
        if most == 1:  # as it was wanted
            yield
            return
        if (most, rows) != (self._most, self._rows):
            self._begin(most, rows)
        start, spent = self._clock(), self._spent()
        with at_most(self.used):
            yield
        self._note(self._clock() - start, self._spent() - spent)

    def _begin(self, most: int, rows: int) -> None:
        """Steps are not what they were."""
        if self._trial is not None:
            self.used = self._trial.threads
        if most != self._most:
            self.used = most
        self._most, self._rows, self._trial = most, rows, None
        self._steps.clear()

    def _note(self, seconds: float, spent: float) -> None:
        """A step has taken so long."""
        self._steps.append((seconds, spent))
        if len(self._steps) < STEPS:
            return
        each = [seconds for seconds, _ in self._steps]
        median, total = statistics.median(each), sum(each)
        if self._trial is not None:
            before, self._trial = self._trial, None
            # With more threads a tie is won: the machine is quiet again.
            if median >= (1.0 if self.used > before.threads else BETTER) * before.median:
                self.used = before.threads
            self._due = self._clock() + abs(total - before.total) / SPENT
            self._steps.clear()
        elif (other := self._other()) != self.used and self._clock() >= self._due:
            self._trial, self.used = _Trial(self.used, median, total), other
            self._steps.clear()

    def _other(self) -> int:
        """What to try: fewer threads where these do not get their cores, else all."""
        got = sum(spent for _, spent in self._steps) / max(sum(seconds for seconds, _ in self._steps), 1e-9)
        if self.used - got > MISSING:
            turns = -(-self._most // max(1, int(got)))  # work is cut for all threads; a thread takes whole pieces
            if (fewer := -(-self._most // turns)) < self.used:
                return fewer
        return self._most
