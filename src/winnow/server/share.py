"""How many tokens of prompts a step may have where nobody says it in milliseconds: as much time as the answers take."""

import statistics
import time
from collections import deque
from collections.abc import Sequence

from winnow.engine.engine import Engine
from winnow.engine.pace import Pace
from winnow.engine.request import Output

TIMES = 2.0  # what a step may take, over what it takes without tokens of prompts
LEAST = 4  # tokens of prompts that a step may always have: a tile of rows, of which fewer take as long
LOOKED_AT = 9  # steps without tokens of prompts, of which the median counts


class Share:
    """Keeps the gaps between tokens short while prompts are computed, whatever machine, model and answers there are.

    Told of every step of an engine by the thread that steps it, it says how many rows the next one may have:
    so many that it takes `TIMES` as long as one without tokens of prompts, of which it has seen some with as many
    answers, or nearly. Where no answer is under way, nobody waits for the next token, and a prompt may have all rows.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._most = engine, engine.max_step_tokens
        self._pace = Pace(TIMES, self._most)  # which counts time in steps without tokens of prompts
        self._pace.note(0, 1.0)
        self._alone: dict[int, deque[float]] = {}  # seconds of such steps, by how many answers they had
        self._answers: set[tuple[int, int]] = set()  # that the next step goes on with
        self._prompts = False  # whether there is a prompt for it, too
        self._offered = self._most
        self._began: float | None = None  # when the next step begins; None: whenever there is one to be made

    def stepped(self, outputs: Sequence[Output]) -> None:
        """What a step has brought."""
        now = time.perf_counter()
        given = {(each.request_id, each.sample_index) for each in outputs if each.token_ids}
        ended = {(each.request_id, each.sample_index) for each in outputs if each.completion is not None}
        going = given - ended
        prompts = self._engine.running > len(going)  # some of what is running has no token yet
        if self._began is not None and self._answers:
            fed = self._prompts or prompts or not given <= self._answers
            self._note(now - self._began, fed, used_all=prompts)
        self._answers, self._prompts = going, prompts
        self._began = None if self._engine.idle else now
        self._offer()

    def _note(self, seconds: float, fed: bool, used_all: bool) -> None:
        """A step has taken so long. fed: whether it had tokens of prompts; used_all: as many as it was offered."""
        if not fed or not self._alone:
            seen = self._alone.setdefault(len(self._answers), deque(maxlen=LOOKED_AT))
            seen.append(seconds)  # the few tokens of prompts that the very first one may have are no matter
        elif used_all:
            self._pace.note(self._offered, seconds / self._alone_s)

    def _offer(self) -> None:
        answers, self._offered = len(self._answers), self._most
        if answers:
            self._offered = max(LEAST, self._pace.offer(answers)) if self._alone else LEAST
        self._engine.max_step_tokens = min(self._most, answers + self._offered)

    @property
    def _alone_s(self) -> float:
        """What a step takes without tokens of prompts, with as many answers or the nearest number that was seen."""
        answers = len(self._answers)
        return statistics.median(self._alone[min(self._alone, key=lambda count: abs(count - answers))])
