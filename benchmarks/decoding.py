"""Whole decodes after many cached tokens, alone and in batches: where some steps are slow, one step says too little.

Weights and units are random, as in `decode`, and no prompt is processed, so nothing is selected at its end. The first
step of every decode is dense for that reason, and selects; it is taken by every arm and counted in no figure.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch

from benchmarks.decode import filled, random_units, stock_cache, stock_step
from benchmarks.shapes import Shape
from benchmarks.speed import STOCK, Rates, timed
from winnow import LLM, Plan, Session, feed_together
from winnow.evaluation.evaluate import Progress, silent

WARMUP = 3  # steps that every arm takes before its first turn
FULL = str(Plan())


@dataclass(frozen=True)
class Taken:
    """One step of all sequences of a batch. slow: how many of them read every unit they keep; units: read, by all."""

    seconds: float
    slow: int
    units: int


@dataclass(frozen=True)
class Decoding:
    """One arm at one length. plan: or `STOCK`; length: tokens cached before; batch: sequences decoded together.

    turns: [repeats][steps]. fixed_bytes: weights, and embeddings of the rows, that every step reads. unit_bytes: of
    one unit.
    """

    plan: str
    length: int
    batch: int
    turns: tuple[tuple[Taken, ...], ...]
    fixed_bytes: int
    unit_bytes: int

    @property
    def tpot_s(self) -> tuple[float, ...]:
        """Seconds from one token of a sequence to its next, the mean over a turn's steps; [repeats]."""
        return tuple(statistics.mean(step.seconds for step in turn) for turn in self.turns)

    def ratio_to(self, other: "Decoding") -> float:
        """The median over the turns, each against the other arm's TPOT in the same turn."""
        return statistics.median(mine / its for mine, its in zip(self.tpot_s, other.tpot_s, strict=True))

    def steps(self, rates: Rates, *, slow: bool) -> dict[str, float] | None:
        """What a slow step took, or a fast one: medians over all turns, and the means of what it read; None: no such.

        With several sequences, a step in which one of them is slow is a slow one.
        """
        taken = [step for turn in self.turns for step in turn if (step.slow > 0) == slow]
        if not taken:
            return None
        seconds, units = statistics.median(step.seconds for step in taken), statistics.mean(s.units for s in taken)
        read_bytes = self.fixed_bytes + units * self.unit_bytes
        gb_s = read_bytes / 1e9 / seconds
        figures = {"count": len(taken) / len(self.turns), "seconds": seconds, "units": units, "bytes": read_bytes}
        return {**figures, "gb_s": gb_s, "share_of_copy": gb_s / rates.copy_gb_s}

    def to_dict(self, rates: Rates, others: Mapping[tuple[str, int, int], "Decoding"]) -> dict[str, Any]:
        """The record behind a line of the table. others: all that was measured, by (plan, length, batch).

        Stock decodes one sequence at a time, so that only a batch of one is compared with it.
        """
        tpot = statistics.median(self.tpot_s)
        full, stock = others.get((FULL, self.length, self.batch)), others.get((STOCK, self.length, self.batch))
        alike = [each for each in others.values() if (each.plan, each.batch) == (self.plan, self.batch)]
        shortest = min(alike, key=lambda each: each.length)
        alone = others.get((self.plan, self.length, 1))
        return {
            "plan": self.plan,
            "length": self.length,
            "batch": self.batch,
            "tpot_s": tpot,
            "tokens_per_s": self.batch / tpot,
            "tpot_spread_s": (max(self.tpot_s) - min(self.tpot_s)) / 2,
            "ratio_to_full": None if full is None or self.plan == STOCK else self.ratio_to(full),
            "ratio_to_stock": None if stock is None else self.ratio_to(stock),
            "tokens_of_one": None if alone is None else self.batch / self.ratio_to(alone),
            "growth": tpot / statistics.median(shortest.tpot_s),
            "fast": self.steps(rates, slow=False),
            "slow": self.steps(rates, slow=True),
            "steps": [[[step.seconds, step.slow, step.units] for step in turn] for turn in self.turns],
        }


def measure_decoding(
    llm: LLM,
    shape: Shape,
    plans: Sequence[Plan],
    lengths: Sequence[int],
    batches: Sequence[int],
    *,
    new: int,
    repeats: int,
    stock_steps: int,
    full_steps: int,
    progress: Progress = silent,
) -> Iterator[list[Decoding]]:
    """Per length, all arms: stock, one sequence and `stock_steps` steps (0: leave it out), and every plan and batch.

    A plan's turn decodes `new` tokens, random ones that are the same for all arms; full attention, whose steps are all
    alike, only `full_steps`. The arms take turns, each begins with filling its caches anew, so that only one arm's are
    held at a time. progress: called with 1 after every turn.
    """
    source = torch.Generator().manual_seed(0)
    fed = torch.randint(shape.vocab, (new + 1, max(batches)), generator=source).tolist()
    fixed = shape.layers * shape.layer_weights + shape.head_weights
    for length in lengths:
        arms: dict[tuple[str, int], Callable[[int], list[Taken]]] = {}
        if stock_steps:
            arms[STOCK, 1] = partial(_stock_turn, llm, shape, length, fed[: stock_steps + 1])
        for batch, plan in product(batches, plans):
            steps = full_steps if plan.is_full else new
            arms[str(plan), batch] = partial(_turn, llm, plan, length, [tokens[:batch] for tokens in fed[: steps + 1]])
        turns: dict[tuple[str, int], list[tuple[Taken, ...]]] = {arm: [] for arm in arms}
        for turn in range(repeats + 1):
            for arm in _rotated(list(arms), turn):
                taken = arms[arm](WARMUP if turn == 0 else new + 1)
                if turn:
                    turns[arm].append(tuple(taken[1:]))
                progress(1)
        yield [
            Decoding(
                plan,
                length,
                batch,
                tuple(turns[plan, batch]),
                (fixed + batch * shape.hidden) * llm.dtype.itemsize,
                llm.decoder.shape.unit_bytes,
            )
            for plan, batch in arms
        ]


def turns_of(plans: int, lengths: int, batches: int, *, repeats: int, stock_steps: int) -> int:
    """How many turns `measure_decoding` takes, those that are not counted included."""
    return lengths * (plans * batches + (stock_steps > 0)) * (repeats + 1)


def _turn(llm: LLM, plan: Plan, length: int, fed: list[list[int]], most: int) -> list[Taken]:
    """The first `most` steps of a batch. fed: [steps][batch] token ids."""
    sessions = _batch(llm, plan, length, len(fed), len(fed[0]))
    taken = []
    for tokens in fed[:most]:
        slow, units = _so_far(sessions)
        seconds = timed(partial(feed_together, sessions, tokens), llm.device)
        slow_then, units_then = _so_far(sessions)
        taken.append(Taken(seconds, slow_then - slow, units_then - units))
    return taken


def _batch(llm: LLM, plan: Plan, length: int, new: int, size: int) -> list[Session]:
    """`size` sessions with units of their own, the same random ones."""
    units = random_units(llm, length)
    return [filled(llm, plan, units, new) for _ in range(size)]


def _so_far(sessions: Sequence[Session]) -> tuple[int, int]:
    """Slow steps, and units read, of all sessions."""
    stats = [session.stats for session in sessions]
    return sum(each.slow_steps for each in stats), sum(each.units_read for each in stats)


def _stock_turn(llm: LLM, shape: Shape, length: int, fed: list[list[int]], most: int) -> list[Taken]:
    """The first `most` steps of the stock model, of the first sequence alone."""
    step = stock_step(llm.model, stock_cache(llm, random_units(llm, length)))
    per_token = shape.layers * shape.kv_heads
    return [
        Taken(timed(partial(step, tokens[0]), llm.device), 1, per_token * (length + 1 + number))
        for number, tokens in enumerate(fed[:most])
    ]


def _rotated(arms: list[tuple[str, int]], turn: int) -> list[tuple[str, int]]:
    """Another arm first each time."""
    first = turn % len(arms)
    return arms[first:] + arms[:first]
