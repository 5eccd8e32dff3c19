"""A time limit, and no run that would go beyond it."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

RECENT = 20  # runs; the first of all, which compile kernels, are forgotten in time


class OutOfTime(Exception):
    """The next run would end too late; caught where a stage ends."""


class Clock:
    """Counts from now on. limit_s: seconds in all."""

    def __init__(self, limit_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self.limit_s = limit_s
        self._now = now
        self._began = now()
        self._recent: deque[float] = deque(maxlen=RECENT)

    @property
    def elapsed_s(self) -> float:
        return self._now() - self._began

    def check(self, share: float, runs: int = 1) -> None:
        """Raise OutOfTime unless `runs` as long as the longest recent one end within `share` of the limit."""
        if self.elapsed_s + runs * max(self._recent, default=0.0) > share * self.limit_s:
            raise OutOfTime

    @contextmanager
    def run(self, share: float, runs: int = 1) -> Iterator[None]:
        """One run, or several together, begun only if there is time for all."""
        self.check(share, runs)
        began = self._now()
        yield
        self._recent.append((self._now() - began) / runs)
