"""What a decode step spends outside kernels: its own time less that of the compiled kernels it calls, and Python calls.

Every kernel that Python enters is replaced by one that times it, in all modules that hold it, for some turns. Other
turns take the same steps with nothing replaced, so that what the timing costs is seen; and calls of Python functions
are counted in steps that are not timed.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from types import FrameType
from typing import Any

from benchmarks.steps import rotated
from winnow import LLM, Engine, Plan, SamplingParams
from winnow.evaluation.evaluate import Progress, silent
from winnow.kernels import packed

WARMUP = 8  # steps of a plan before its first turn


@dataclass
class Clock:
    """What kernels have taken so far. calls: from Python."""

    seconds: float = 0.0
    calls: int = 0

    def timing(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """The same kernel, timed."""

        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = kernel(*arguments)
            self.seconds += time.perf_counter() - start
            self.calls += 1
            return result

        return timed


@dataclass(frozen=True)
class Spent:
    """One turn of a plan: seconds of each step, with nothing replaced, and with kernels timed; theirs in the latter.

    entered: kernels that a step calls; calls: Python functions, of one step in which nothing is timed.
    """

    plan: str
    plain: tuple[float, ...]
    watched: tuple[float, ...]
    kernels: tuple[float, ...]
    entered: float
    calls: int


@dataclass(frozen=True)
class OverheadRow:
    """A plan, medians over its steps. outside_s: of the watched steps less their kernels, step by step; least_s: the
    least. calls: Python calls of a step; kernels: how many kernels it enters; layers: of the model.
    """

    plan: str
    step_s: float
    watched_s: float
    kernels_s: float
    outside_s: float
    least_s: float
    kernels: float
    calls: int
    layers: int

    @property
    def calls_per_layer(self) -> float:
        return self.calls / self.layers


def measure_overhead(
    llm: LLM, plans: Sequence[Plan], prompt: list[int], *, steps: int, repeats: int, progress: Progress = silent
) -> Iterator[Spent]:
    """All turns of all plans, each of which goes on with its one request. progress: called with 1 after every turn."""
    params = SamplingParams(max_tokens=tokens(steps, repeats), ignore_eos=True)
    with ExitStack() as stack:
        engines = {str(plan): stack.enter_context(llm.engine()) for plan in plans}
        for plan, engine in zip(plans, engines.values(), strict=True):
            engine.add(prompt, params, plan=plan)
            while not engine.step():
                pass
            _steps(engine, WARMUP)
        for turn in range(repeats):
            for name in rotated(list(engines), turn):
                yield _turn(name, engines[name], steps, watched_first=turn % 2 == 1)
                progress(1)


def tokens(steps: int, repeats: int) -> int:
    """How many tokens a request has to have room for."""
    return WARMUP + repeats * (2 * steps + 1) + 2


@contextmanager
def watched() -> Iterator[Clock]:
    """Within, kernels that Python enters are timed."""
    from winnow.kernels.dealt import Kernel

    clock, put = Clock(), []
    for module in [each for name, each in sys.modules.items() if name.startswith("winnow.")]:
        for name, value in list(vars(module).items()):
            if isinstance(value, Kernel):
                put.append((module, name, value))
                setattr(module, name, clock.timing(value))
    packed._kernels.cache_clear()  # which holds one of them
    try:
        yield clock
    finally:
        for module, name, value in put:
            setattr(module, name, value)
        packed._kernels.cache_clear()


def python_calls(run: Callable[[], object]) -> int:
    """How many Python functions are entered in this thread while it runs."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


def _turn(name: str, engine: Engine, steps: int, *, watched_first: bool) -> Spent:
    plain = [] if watched_first else _steps(engine, steps)
    timed, kernels = [], []
    with watched() as clock:
        for _ in range(steps):
            before = clock.seconds
            timed += _steps(engine, 1)
            kernels.append(clock.seconds - before)
    plain = plain or _steps(engine, steps)
    return Spent(name, tuple(plain), tuple(timed), tuple(kernels), clock.calls / steps, python_calls(engine.step))


def _steps(engine: Engine, count: int) -> list[float]:
    marks = [time.perf_counter()]
    for _ in range(count):
        engine.step()
        marks.append(time.perf_counter())
    return [later - earlier for earlier, later in pairwise(marks)]


def summarise_overhead(spent: Sequence[Spent], layers: int) -> list[OverheadRow]:
    """A row per plan of which a turn was finished."""
    rows = []
    for plan in dict.fromkeys(each.plan for each in spent):
        mine = [each for each in spent if each.plan == plan]
        plain, timed, kernels = (
            [second for each in mine for second in getattr(each, name)] for name in ("plain", "watched", "kernels")
        )
        outside = [whole - inside for whole, inside in zip(timed, kernels, strict=True)]
        seconds = (statistics.median(each) for each in (plain, timed, kernels, outside))
        counts = (statistics.median(each.entered for each in mine), statistics.median_low(each.calls for each in mine))
        rows.append(OverheadRow(plan, *seconds, min(outside), *counts, layers))
    return rows
