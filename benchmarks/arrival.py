"""A long prompt that arrives while others decode: the gaps that it makes for them, and the time that they take from it.

A gap is a step in which the others are given a token. Every turn of a setting is an engine of its own: the others
begin, their undisturbed gaps are measured, then the prompt arrives, and its request ends with its first token.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from winnow import LLM, Engine, SamplingParams
from winnow.evaluation.evaluate import Progress, silent

UNDISTURBED = 32  # gaps measured before every arrival
WARMUP = 8  # steps before the first of them
ALONE = "alone"


@dataclass(frozen=True)
class Setting:
    """Limits of an engine, as its arguments; both None: the newcomer is alone on it, and nothing is limited."""

    max_step_s: float | None = None
    max_step_tokens: int | None = None

    @property
    def name(self) -> str:
        if self.max_step_s is not None:
            return f"max_step_s={self.max_step_s:.3f}"
        return ALONE if self.max_step_tokens is None else f"max_step_tokens={self.max_step_tokens}"

    @property
    def arguments(self) -> dict[str, Any]:
        given = {"max_step_s": self.max_step_s, "max_step_tokens": self.max_step_tokens}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Arrived:
    """One arrival. undisturbed_s: the median gap before it; gaps_s: until the newcomer's first token, that step's
    included, none where it is alone; ttft_s: of the newcomer, None where it was given up; tokens: of it, computed.
    """

    setting: str
    undisturbed_s: float | None
    gaps_s: tuple[float, ...]
    ttft_s: float | None
    tokens: int


@dataclass(frozen=True)
class ArrivalRow:
    """A setting, medians over its turns.

    longest: the longest gap over the undisturbed median of its turn; worst: the largest of all turns; typical: the
    median gap over it. of_alone: TTFT over the newcomer's alone; both None where it was given up in half of the turns
    or more. computed: the share of its prompt that was computed.
    """

    setting: str
    turns: int
    undisturbed_s: float
    longest: float
    worst: float
    typical: float
    ttft_s: float | None
    of_alone: float | None
    computed: float


def undisturbed_s(llm: LLM, prompts: Sequence[list[int]]) -> float:
    """The median gap of sequences that decode together and alone."""
    with llm.engine(max_sequences=len(prompts)) as engine:
        _begin(llm, engine, prompts)
        return statistics.median(_gaps(engine, 2 * UNDISTURBED))


def measure_arrival(
    llm: LLM,
    settings: Sequence[tuple[Setting, int]],
    prompts: Sequence[list[int]],
    newcomer: list[int],
    *,
    patience_s: float,
    progress: Progress = silent,
) -> Iterator[Arrived]:
    """Arrivals of `newcomer` by turns: each setting as many times as is said beside it.

    prompts: of those who decode. patience_s: a newcomer that has no token by then is given up, unless it is alone.
    progress: called with 1 after every arrival.
    """
    for turn in range(max(turns for _, turns in settings)):
        for setting, turns in settings:
            if turn < turns:
                yield _arrival(llm, setting, prompts, newcomer, patience_s)
                progress(1)


def _arrival(
    llm: LLM, setting: Setting, prompts: Sequence[list[int]], newcomer: list[int], patience_s: float
) -> Arrived:
    alone, tokens, gaps = setting.name == ALONE, list[int](), list[float]()
    with llm.engine(max_sequences=len(prompts) + 1, progress=tokens.append, **setting.arguments) as engine:
        others = set() if alone else _begin(llm, engine, prompts)
        before = None if alone else statistics.median(_gaps(engine, UNDISTURBED))
        tokens.clear()
        started = time.perf_counter()
        mine = engine.add(newcomer, SamplingParams(max_tokens=1, ignore_eos=True))
        given: set[int] = set()
        while mine not in given and (alone or time.perf_counter() < started + patience_s):
            seconds, given = _seconds(engine)
            if others & given:
                gaps.append(seconds)
        ttft_s = time.perf_counter() - started if mine in given else None
        return Arrived(setting.name, before, tuple(gaps), ttft_s, sum(tokens))


def _begin(llm: LLM, engine: Engine, prompts: Sequence[list[int]]) -> set[int]:
    """Have sequences decode until the model's positions end; returns their ids."""
    most = llm.decoder.shape.max_positions
    begun = {engine.add(ids, SamplingParams(max_tokens=most - len(ids), ignore_eos=True)) for ids in prompts}
    left = set(begun)
    while left:
        left -= _seconds(engine)[1]
    _gaps(engine, WARMUP)
    return begun


def _gaps(engine: Engine, count: int) -> list[float]:
    """Seconds of so many steps."""
    return [_seconds(engine)[0] for _ in range(count)]


def _seconds(engine: Engine) -> tuple[float, set[int]]:
    """What a step takes, and the requests that it gives tokens to."""
    start = time.perf_counter()
    outputs = engine.step()
    return time.perf_counter() - start, {output.request_id for output in outputs}


def summarise_arrival(arrived: Sequence[Arrived], length: int) -> list[ArrivalRow]:
    """A row per setting, but for the newcomer alone, which must be there. length: of its prompt."""
    alone = _median([each.ttft_s for each in arrived if each.setting == ALONE])
    rows = []
    for name in dict.fromkeys(each.setting for each in arrived if each.setting != ALONE):
        mine = [each for each in arrived if each.setting == name]
        longest, typical = _over(mine, max), _over(mine, statistics.median)
        ttft_s = _median([each.ttft_s for each in mine])
        rows.append(
            ArrivalRow(
                name,
                len(mine),
                statistics.median(each.undisturbed_s for each in mine if each.undisturbed_s is not None),
                statistics.median(longest),
                max(longest),
                statistics.median(typical),
                ttft_s,
                None if ttft_s is None or alone is None else ttft_s / alone,
                statistics.median(each.tokens for each in mine) / length,
            )
        )
    return rows


def _median(seconds: Sequence[float | None]) -> float | None:
    """None where half of them or more are."""
    found = statistics.median(math.inf if each is None else each for each in seconds)
    return found if math.isfinite(found) else None


def _over(arrived: Sequence[Arrived], figure: Callable[[Sequence[float]], float]) -> list[float]:
    """A figure of each one's gaps over its undisturbed gap."""
    return [figure(each.gaps_s) / each.undisturbed_s for each in arrived if each.undisturbed_s is not None]
