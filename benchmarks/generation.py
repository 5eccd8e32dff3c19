"""Whole generations under several plans on one model: time to the first token, decode steps, and all of it.

Every arm is Winnow; the first one is full attention, which the others are compared with. The tokens after the first are
fixed, not sampled, so that every arm does the same work.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.shapes import Shape
from benchmarks.speed import timed_feed
from winnow import LLM, Plan, Stats
from winnow.evaluation.evaluate import Progress, silent


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
    llm: LLM,
    shape: Shape,
    plans: Sequence[Plan],
    length: int,
    new: int,
    *,
    repeats: int,
    progress: Progress = silent,
) -> list[Generation]:
    """`repeats` generations of `new` tokens after `length` random ones under full attention and under every plan.

    The plans take turns; one turn of each before is not counted. progress: called with 1 after every generation.
    """
    arms = [Plan(), *plans]
    source = torch.Generator().manual_seed(0)
    prompt, fed = torch.randint(shape.vocab, (length + new - 1,), generator=source).split([length, new - 1])
    turns: list[list[tuple[float, tuple[float, ...], Stats]]] = [[] for _ in arms]
    for turn in range(repeats + 1):
        for place in range(len(arms)):
            arm = (place + turn) % len(arms)  # another one first each time
            turns[arm].append(_generate(llm, arms[arm], prompt.tolist(), fed.tolist()))
            progress(1)
    return [
        Generation(str(arm), tuple(t[0] for t in took[1:]), tuple(t[1] for t in took[1:]), took[-1][2])
        for arm, took in zip(arms, turns, strict=True)
    ]


def _generate(llm: LLM, plan: Plan, prompt: list[int], fed: list[int]) -> tuple[float, tuple[float, ...], Stats]:
    """Seconds of the prefill and of every decode step, and what it cost."""
    with llm.session(plan=plan, max_tokens=len(fed) + 1) as session:
        first, *steps = timed_feed(session, prompt, fed)
        return first, tuple(steps), session.stats


def _ratio(mine: Sequence[float], full: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(mine, full, strict=True))
