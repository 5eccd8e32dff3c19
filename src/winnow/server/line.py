"""When those whom a full queue has refused come back: one after another, as fast as answers end."""

import math
import time
from collections.abc import Sequence

from winnow.engine.engine import Engine
from winnow.engine.request import Output
from winnow.server.errors import RETRY_S

LONGEST_S = 60  # clients wait no longer for what may come sooner
WEIGHT = 0.1  # of the newest time between two ends in their mean


class Line:
    """Places outside a full queue. Told of every step of an engine by the thread that steps it; asked by the loop.

    Whoever is refused gets the place behind the one before, and comes back when the queue has got on so far. Those who
    do not come leave nothing idle: the queue before them is full.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._between_s: float | None = None  # the mean time between the ends of two answers, while there are any
        self._ended: float | None = None  # when one has ended; None: there was nothing to do since
        self._last = -math.inf  # when the last one in the line comes back

    def stepped(self, outputs: Sequence[Output]) -> None:
        """Count the requests that end in a step, by their first sample."""
        now = time.monotonic()
        for _ in range(sum(output.completion is not None and output.sample_index == 0 for output in outputs)):
            taken, self._ended = now - (self._ended or now), now
            mean = taken if self._between_s is None else self._between_s
            self._between_s = mean + WEIGHT * (taken - mean)
        if self._ended is None or self._engine.idle:
            self._ended = None if self._engine.idle else now

    def place_s(self) -> int:
        """Whole seconds after which the next one comes back: 1 at least, 60 at most."""
        now = time.monotonic()
        self._last = min(max(now + RETRY_S, self._last + (self._between_s or 0.0)), now + LONGEST_S)
        return max(RETRY_S, math.ceil(self._last - now - 1e-6))
