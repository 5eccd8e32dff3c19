"""Whole generations under several plans on one model: time to the first token, decode steps, and all of it.

Every arm is Winnow; the first one is full attention, which the others are compared with. The tokens after the first are
fixed, not sampled, so that every arm does the same work.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from winnow.bench.shapes import Shape
from winnow.plan import Plan
from winnow.runtime.decoder import Decoder
from winnow.runtime.forward import decode, prefill
from winnow.runtime.scorer import admit
from winnow.stats import Stats


@dataclass(frozen=True)
class Generation:
    """The repeats of one plan. ttft_s: [repeats]; steps_s: [repeats][new tokens - 1]; stats: of the last repeat."""

    plan: str
    ttft_s: tuple[float, ...]
    steps_s: tuple[tuple[float, ...], ...]
    stats: Stats

    @property
    def total_s(self) -> tuple[float, ...]:
        """Seconds from the start to the last token, of each repeat."""
        return tuple(first + sum(steps) for first, steps in zip(self.ttft_s, self.steps_s, strict=True))

    def to_dict(self, full: "Generation") -> dict[str, Any]:
        """The record behind a line of the table; ratios are medians over the repeats of turns next to each other."""
        step = [statistics.median(steps) for steps in self.steps_s]
        return {
            "plan": self.plan,
            "ttft_s": statistics.median(self.ttft_s),
            "step_s": statistics.median(step),
            "total_s": statistics.median(self.total_s),
            "ttft_ratio": _ratio(self.ttft_s, full.ttft_s),
            "step_ratio": _ratio(step, [statistics.median(steps) for steps in full.steps_s]),
            "total_ratio": _ratio(self.total_s, full.total_s),
            "stats": self.stats.to_dict(),
            "repeats": {"ttft_s": self.ttft_s, "steps_s": self.steps_s},
        }


def measure_generation(
    decoder: Decoder,
    shape: Shape,
    plans: Sequence[Plan],
    length: int,
    new: int,
    *,
    repeats: int,
    chunk: int,
    progress: Callable[[], None] = lambda: None,
) -> list[Generation]:
    """`repeats` generations of `new` tokens after `length` random ones under full attention and under every plan.

    The plans take turns; one turn of each before is not counted. progress: called after every generation.
    """
    arms = [Plan(), *plans]
    source = torch.Generator().manual_seed(0)
    prompt, fed = torch.randint(shape.vocab, (length + new - 1,), generator=source).split([length, new - 1])
    turns: list[list[tuple[float, tuple[float, ...], Stats]]] = [[] for _ in arms]
    for turn in range(repeats + 1):
        for place in range(len(arms)):
            arm = (place + turn) % len(arms)  # another one first each time
            turns[arm].append(_generate(decoder, arms[arm], prompt.tolist(), fed.tolist(), chunk))
            progress()
    return [
        Generation(str(arm), tuple(t[0] for t in took[1:]), tuple(t[1] for t in took[1:]), took[-1][2])
        for arm, took in zip(arms, turns, strict=True)
    ]


def _generate(
    decoder: Decoder, plan: Plan, prompt: list[int], fed: list[int], chunk: int
) -> tuple[float, tuple[float, ...], Stats]:
    """Seconds of the prefill and of every decode step, and what it cost."""
    marks = [time.perf_counter()]
    state, seen = admit(decoder, None, plan, prompt, len(fed) + 1, chunk)
    prefill(decoder, state, seen, chunk)[0].item()  # an item is a wait for the device
    marks.append(time.perf_counter())
    for token in fed:
        decode(decoder, [(state, token)])[0, 0].item()
        marks.append(time.perf_counter())
    state.measure()
    seconds = [after - before for before, after in pairwise(marks)]
    state.stats.new_tokens, state.stats.ttft_s, state.stats.total_s = len(fed) + 1, seconds[0], sum(seconds)
    return seconds[0], tuple(seconds[1:]), state.stats


def _ratio(mine: Sequence[float], full: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(mine, full, strict=True))
