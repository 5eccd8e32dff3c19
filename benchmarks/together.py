"""Sequences that decode together in one engine, beside one alone, and the least that the machine could take."""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from benchmarks.continuous import Continuous
from benchmarks.speed import STOCK, machine_rates, timed
from benchmarks.steps import rotated
from winnow import LLM, Plan, SamplingParams
from winnow.evaluation.evaluate import Progress, silent
from winnow.kernels.layers import tables
from winnow.runtime.few import FewRows

WARMUP = 8  # steps before the first turn
PRODUCTS = 5  # times that the products are measured in a turn
MIXED = "mixed"


@dataclass(frozen=True)
class Arm:
    """Sequences that decode together. plans: of each; name: of the arm, of which there is one alone and one of many."""

    name: str
    plans: tuple[Plan, ...]

    @property
    def key(self) -> str:
        return f"{self.name}, {len(self.plans)}"


@dataclass(frozen=True)
class Turn:
    """One turn of all arms. seconds: of a step of each, the median; products_s: of all products at so many rows, None
    where they cannot be had by themselves; read_gb_s: what the machine reads.
    """

    seconds: dict[str, float]
    products_s: float | None
    read_gb_s: float


@dataclass(frozen=True)
class TogetherRow:
    """An arm of many, medians over the turns. step_s: of a step that gives each of them a token.

    of_one: its tokens per second over one sequence's alone in the same turn, with the least and the most; of_stock:
    over transformers'; floor_s: the products and everybody's units, at the rate of reading; of_floor: its step over it.
    """

    name: str
    sequences: int
    step_s: float
    tokens_per_s: float
    of_one: float | None
    of_one_low: float | None
    of_one_high: float | None
    floor_s: float | None
    of_floor: float | None
    of_stock: float | None


class Batch:
    """Requests of one engine, all past their prompts."""

    def __init__(self, llm: LLM, arm: Arm, prompts: Sequence[list[int]], new: int, progress: Progress) -> None:
        # A prompt in a step, so that those who decode already take few.
        rows = len(prompts[0]) + len(prompts)
        self._engine = llm.engine(max_sequences=len(arm.plans), max_step_tokens=rows, progress=progress)
        early = 2 * len(prompts)
        params = SamplingParams(max_tokens=early + new + 2, ignore_eos=True)
        left = {self._engine.add(ids, params, plan=plan) for ids, plan in zip(prompts, arm.plans, strict=False)}
        self._ids = set(left)
        while left:
            left -= {output.request_id for output in self._engine.step()}
        self.steps(WARMUP)

    def steps(self, count: int) -> list[float]:
        """Seconds of each of so many steps."""
        seconds = []
        for _ in range(count):
            start = time.perf_counter()
            given = len(self._engine.step())
            seconds.append(time.perf_counter() - start)
            assert given == len(self._ids)
        return seconds

    def close(self) -> float:
        """End them; returns the units that a step has read, of all together, the mean."""
        for each in self._ids:
            self._engine.abort(each)
        ended = [output.completion for output in self._engine.step()]
        self._engine.close()
        return sum(each.stats.units_read / (each.stats.new_tokens - 1) for each in ended if each is not None)


def arms_of(plans: Sequence[Plan], sequences: int) -> list[Arm]:
    """Every plan alone and for all, and all of them mixed where there are several."""
    arms = [Arm(str(plan), (plan,) * count) for plan in plans for count in (1, sequences)]
    if len(plans) > 1:
        arms.append(Arm(MIXED, tuple(plans[index % len(plans)] for index in range(sequences))))
    return arms


def measure_together(
    llm: LLM,
    arms: Sequence[Arm],
    prompts: Sequence[list[int]],
    stock: Continuous | None,
    *,
    steps: int,
    repeats: int,
    units: dict[str, float],
    progress: Progress = silent,
) -> Iterator[Turn]:
    """All arms in every turn, another one first each time; at the end `units` says what a step of each has read.

    stock: past its first turn. progress: called with prompt tokens, and with `steps` after each arm of a turn.
    """
    with ExitStack() as stack:
        batches: dict[str, Batch] = {}
        for arm in arms:
            batches[arm.key] = batch = Batch(llm, arm, prompts, WARMUP + repeats * steps, progress)
            stack.callback(lambda key=arm.key, batch=batch: units.update({key: batch.close()}))
        names = [*batches, *([] if stock is None else [STOCK])]
        for turn in range(repeats):
            seconds: dict[str, float] = {}
            for name in rotated(names, turn):
                taken = stock.turn() if name == STOCK and stock is not None else batches[name].steps(steps)
                seconds[name] = statistics.median(taken)
                progress(steps)
            yield Turn(seconds, products_s(llm, len(prompts)), machine_rates(llm.dtype, llm.device).read_gb_s)


@torch.inference_mode()
def products_s(llm: LLM, rows: int) -> float | None:
    """Seconds of all products of a step of so many rows, with the norms and activations between them, and the head.

    Everything but attention and the embedding, all layers in two calls of the kernel; None where it cannot take them.
    """
    decoder, layers = llm.decoder, llm.decoder.shape.layers
    if not all(decoder.program.takes(layer, rows) for layer in range(layers)):
        return None
    few = FewRows(decoder.program, torch.ones(rows, decoder.shape.hidden, dtype=llm.dtype))
    few.attended.zero_()

    def run() -> None:
        few.take(0, layers, tables.BEFORE)
        few.take(0, layers, tables.AFTER)
        decoder.logits(few.hidden)

    with decoder.driving():
        return statistics.median(timed(run, llm.device) for _ in range(PRODUCTS))


def summarise_together(
    arms: Sequence[Arm], turns: Sequence[Turn], units: Mapping[str, float], unit_bytes: int
) -> list[TogetherRow]:
    """A row per arm of many, transformers last."""
    rows = []
    for arm in arms:
        if len(arm.plans) > 1:
            alone = [statistics.mean(turn.seconds[f"{plan}, 1"] for plan in arm.plans) for turn in turns]
            floors = [
                turn.products_s + units[arm.key] * unit_bytes / 1e9 / turn.read_gb_s
                for turn in turns
                if turn.products_s is not None
            ]
            rows.append(_row(arm.name, len(arm.plans), [turn.seconds[arm.key] for turn in turns], turns, alone, floors))
    if STOCK in turns[0].seconds:
        rows.append(_row(STOCK, rows[0].sequences, [turn.seconds[STOCK] for turn in turns], turns, [], []))
    return rows


def _row(
    name: str,
    sequences: int,
    mine: Sequence[float],
    turns: Sequence[Turn],
    alone: Sequence[float],
    floors: Sequence[float],
) -> TogetherRow:
    step_s = statistics.median(mine)
    of_one = [sequences * its / own for own, its in zip(mine, alone, strict=False)] or [None]
    of_floor = [own / floor for own, floor in zip(mine, floors, strict=False)]
    stock = [turn.seconds[STOCK] / own for own, turn in zip(mine, turns, strict=True) if STOCK in turn.seconds]
    return TogetherRow(
        name,
        sequences,
        step_s,
        sequences / step_s,
        *((statistics.median(of_one), min(of_one), max(of_one)) if alone else (None, None, None)),
        statistics.median(floors) if floors else None,
        statistics.median(of_floor) if of_floor else None,
        statistics.median(stock) if stock else None,
    )
