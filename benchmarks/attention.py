"""What attention takes of a decode step, by how units are held: the step less the same step over next to none."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.decode import TOKEN, filled, random_units
from benchmarks.speed import alternate, machine_rates
from winnow import LLM, Plan
from winnow.evaluation.evaluate import Progress, silent

FEW = 2  # units that are cached where attention is to take nothing
WARMUP = 2  # steps before the first turn


@dataclass(frozen=True)
class Turn:
    """One turn. step_s: of a step of each plan over many units, few_s: over next to none; read_gb_s: what the machine
    reads.
    """

    step_s: dict[str, float]
    few_s: dict[str, float]
    read_gb_s: float


@dataclass(frozen=True)
class AttentionRow:
    """A plan, medians over the turns, each ratio taken within a turn, with the least and the most.

    step_s, attention_s: of a step, and of that what comes with the units. step_x, attention_x: over the first plan's.
    units_bytes: that a step reads; gb_s: in attention's time; of_rate: over what the machine reads.
    """

    plan: str
    step_s: float
    step_x: float
    step_low: float
    step_high: float
    attention_s: float
    attention_x: float
    attention_low: float
    attention_high: float
    units_bytes: int
    gb_s: float
    of_rate: float


def measure_attention(
    llm: LLM,
    plans: Sequence[Plan],
    length: int,
    *,
    steps: int,
    repeats: int,
    held: dict[str, int],
    progress: Progress = silent,
) -> Iterator[Turn]:
    """All plans in every turn, a step's median of `steps`. held: gets the bytes of each plan's units, all of which its
    steps read. progress: called with 1 after every turn.
    """
    new = WARMUP + repeats * steps + 1
    sessions = {
        (str(plan), count): filled(llm, plan, random_units(llm, count), new)
        for plan in plans
        for count in (length, FEW)
    }
    arms = {f"{count} {name}": partial(each.feed, [TOKEN]) for (name, count), each in sessions.items()}
    alternate(arms, repeats=1, warmup=WARMUP - 1, device=llm.device)
    held |= {str(plan): sessions[str(plan), length].state.held()[0] for plan in plans}
    for _ in range(repeats):
        taken = alternate(arms, repeats=steps, warmup=0, device=llm.device)
        own, least = (
            {str(plan): statistics.median(taken[f"{count} {plan}"]) for plan in plans} for count in (length, FEW)
        )
        yield Turn(own, least, machine_rates(llm.dtype, llm.device).read_gb_s)
        progress(1)


def summarise_attention(turns: Sequence[Turn], held: dict[str, int]) -> list[AttentionRow]:
    """A row per plan, the first of which the others are compared with."""
    first, rows = next(iter(held)), []
    for plan, nbytes in held.items():
        steps, alone = zip(*(_taken(turn, plan) for turn in turns), strict=True)
        step_x, alone_x = (
            [mine / its[part] for mine, its in zip(values, (_taken(turn, first) for turn in turns), strict=True)]
            for part, values in enumerate((steps, alone))
        )
        rates = [nbytes / 1e9 / seconds for seconds in alone]
        rows.append(
            AttentionRow(
                plan,
                statistics.median(steps),
                *_spread(step_x),
                statistics.median(alone),
                *_spread(alone_x),
                nbytes,
                statistics.median(rates),
                statistics.median(rate / turn.read_gb_s for rate, turn in zip(rates, turns, strict=True)),
            )
        )
    return rows


def _taken(turn: Turn, plan: str) -> tuple[float, float]:
    """Seconds of a step, and of its attention."""
    return turn.step_s[plan], turn.step_s[plan] - turn.few_s[plan]


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return statistics.median(values), min(values), max(values)
