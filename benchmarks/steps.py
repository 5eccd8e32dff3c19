"""Decode steps after many tokens of a real text, plan beside plan: each reads what its own prefill has left."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.speed import timed
from winnow import LLM, Plan, SamplingParams, Session
from winnow.errors import InputError, ModelError, PlanError
from winnow.evaluation.evaluate import Progress, silent

FULL = str(Plan())
WARMUP = 8  # steps of every plan before the first turn
PLANS = (
    FULL,
    "lazyllm",
    "speed",
    "streaming(recent=512)",
    "random_heads(budget=512)",
    "h2o(budget=512)",
    "snapkv(budget=512)",
    "slowfast(budget=512, recent=128)",
    "quest(budget=512)",
    "tidal(budget=512)",
    "sink_recent(recent=512)",
)


@dataclass(frozen=True)
class Stepped:
    """A plan at a length. seconds: [turns][steps]; units: read by a step, the mean."""

    plan: str
    length: int
    seconds: tuple[tuple[float, ...], ...]
    units: float


@dataclass(frozen=True)
class StepsRow:
    """A plan at a length, over all its steps, in seconds; units: that a step reads.

    ratio: of a turn's median to full attention's in the same turn, the median of all turns, and the least and the most.
    """

    plan: str
    length: int
    median_s: float
    min_s: float
    mean_s: float
    units: float
    ratio: float
    ratio_low: float
    ratio_high: float


def runnable(llm: LLM, plans: Sequence[Plan], lengths: Sequence[int], new: int) -> tuple[list[Plan], dict[str, str]]:
    """The plans that the model can follow after prompts of these lengths; of the others the reason, by plan."""
    able: list[Plan] = []
    reasons: dict[str, str] = {}
    for plan in plans:
        try:
            for length in lengths:
                llm.check([[0] * length], SamplingParams(max_tokens=new + 1), plan=plan)
        except (PlanError, ModelError, InputError) as error:
            reasons[str(plan)] = str(error)
        else:
            able.append(plan)
    return able, reasons


def measure_steps(
    llm: LLM,
    plans: Sequence[Plan],
    ids: Sequence[int],
    lengths: Sequence[int],
    *,
    steps: int,
    repeats: int,
    progress: Progress = silent,
) -> Iterator[list[Stepped]]:
    """Per length, all plans, `steps` tokens of the text in every turn, another plan first each time.

    progress: called with the tokens of every prompt, and with `steps` after every turn of a plan.
    """
    new = WARMUP + repeats * steps
    for length in lengths:
        sessions: dict[str, Session] = {}
        for plan in plans:
            sessions[str(plan)] = llm.session(plan=plan, max_tokens=new + 1)
            sessions[str(plan)].feed(ids[:length], progress=progress)
        fed = list(ids[length : length + new])
        for session in sessions.values():
            session.feed(fed[:WARMUP])
        before = {name: session.stats.units_read for name, session in sessions.items()}
        seconds: dict[str, list[tuple[float, ...]]] = {name: [] for name in sessions}
        for turn in range(repeats):
            tokens = fed[WARMUP + turn * steps :][:steps]
            for name in rotated(list(sessions), turn):
                step = sessions[name].feed
                seconds[name].append(tuple(timed(partial(step, [token]), llm.device) for token in tokens))
                progress(steps)
        yield [
            Stepped(name, length, tuple(seconds[name]), (session.stats.units_read - before[name]) / (repeats * steps))
            for name, session in sessions.items()
        ]
        for session in sessions.values():
            session.close()


def rotated(names: list[str], turn: int) -> list[str]:
    """Another one first each time."""
    first = turn % len(names)
    return names[first:] + names[:first]


def summarise_steps(measured: Sequence[Stepped]) -> list[StepsRow]:
    """A row per plan and length."""
    full = {each.length: each for each in measured if each.plan == FULL}
    rows = []
    for each in measured:
        steps = [second for turn in each.seconds for second in turn]
        ratios = sorted(
            statistics.median(mine) / statistics.median(its)
            for mine, its in zip(each.seconds, full[each.length].seconds, strict=True)
        )
        figures = (statistics.median(steps), min(steps), statistics.mean(steps), each.units)
        rows.append(StepsRow(each.plan, each.length, *figures, statistics.median(ratios), ratios[0], ratios[-1]))
    return rows
