"""A long prompt that comes while streams run: the gaps that their clients see before it, and until its first token."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise

import httpx2

from benchmarks.load.client import Heard, Wanted, client_of, follow, listen
from benchmarks.load.figures import percentile
from benchmarks.load.prompts import Prompts
from winnow.errors import InputError

SHORT = (32, 64)  # prompt tokens of a stream that runs
WARMUP = 8  # pieces of each stream before the first that counts
ANSWER = 8  # tokens of the prompt's answer: the first may be no text yet
LOOK_S = 0.01  # between two looks at how far streams are


@dataclass(frozen=True)
class Arrived:
    """One arrival. prompt: its tokens; ttft_s, alone_s: its time to the first token, and that of one as long when
    nothing else is to do. before, meanwhile: gaps of all streams, the one that the arrival falls into among the second;
    ended: streams that were over before the first token, or had gone wrong.
    """

    prompt: int
    ttft_s: float
    alone_s: float
    before: tuple[float, ...]
    meanwhile: tuple[float, ...]
    ended: int


@dataclass(frozen=True)
class ArrivingRow:
    """An arrival, or all of them: their gaps together, medians of the rest. ratio: p99 while it is computed over p99
    before; of_median: over p50 before; of_alone: TTFT over alone."""

    arrival: str
    prompt: float
    gaps: int
    p50_before_s: float
    p99_before_s: float
    p50_s: float
    p99_s: float
    ratio: float
    of_median: float
    ttft_s: float
    of_alone: float
    ended: int


def measure_arriving(
    url: str, prompts: Prompts, tokens: int, streams: int, before: int, new: int, repeats: int
) -> Iterator[Arrived]:
    """Arrivals of prompts of so many tokens beside so many streams; before: pieces of each that count until then.

    Raises InputError where a prompt is not answered, or a stream ends before its time.
    """
    for _ in range(repeats):
        running = [prompts.wanted("stream", SHORT, new) for _ in range(streams)]
        alone, newcomer = (prompts.wanted(kind, (tokens, tokens), ANSWER) for kind in ("alone", "arrives"))
        yield asyncio.run(_arrival(url, running, alone, newcomer, before))


async def _arrival(url: str, running: Sequence[Wanted], alone: Wanted, newcomer: Wanted, before: int) -> Arrived:
    async with client_of(url) as client:
        alone_s = _first_s(await follow(client, alone))
        async with _streaming(client, running) as streams:
            while min(len(each.times) for each in streams) < WARMUP + before + 1:
                _check(streams)
                await asyncio.sleep(LOOK_S)
            came = await follow(client, newcomer)
    ttft_s = _first_s(came)
    came_s, first_s = came.asked_s, came.asked_s + ttft_s
    gaps = [(start, end) for each in streams for start, end in pairwise(each.times[WARMUP:])]
    return Arrived(
        came.prompt,
        ttft_s,
        alone_s,
        # To the microsecond: there are thousands of them.
        tuple(round(end - start, 6) for start, end in gaps if end <= came_s),
        tuple(round(end - start, 6) for start, end in gaps if came_s < end and start < first_s),
        sum(0 < each.ended_s < first_s for each in streams),
    )


@asynccontextmanager
async def _streaming(client: httpx2.AsyncClient, wanted: Sequence[Wanted]) -> AsyncIterator[list[Heard]]:
    """What streams have come to so far; their client leaves at the end."""
    streams = [Heard(each, time.perf_counter()) for each in wanted]
    tasks = [asyncio.create_task(listen(client, each)) for each in streams]
    try:
        yield streams
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _check(streams: Sequence[Heard]) -> None:
    for each in streams:
        if each.ended_s:
            raise InputError(f"a stream was over before the prompt came: {each.problem or 'ask for more --new'}")


def _first_s(heard: Heard) -> float:
    if heard.problem is not None or heard.ttft_s is None:
        raise InputError(f"a prompt was not answered: {heard.problem or 'no text came'}")
    return heard.ttft_s


def summarise_arriving(arrived: Sequence[Arrived]) -> list[ArrivingRow]:
    """A row for each, and one for all of them where there are several."""
    rows = [_row(str(number), [each]) for number, each in enumerate(arrived, 1)]
    return [*rows, _row("all", arrived)] if len(arrived) > 1 else rows


def _row(name: str, arrived: Sequence[Arrived]) -> ArrivingRow:
    before = [gap for each in arrived for gap in each.before]
    meanwhile = [gap for each in arrived for gap in each.meanwhile]
    p50_before, p99_before = (percentile(before, share) for share in (0.5, 0.99))
    p50, p99 = (percentile(meanwhile, share) for share in (0.5, 0.99))
    return ArrivingRow(
        name,
        statistics.median(each.prompt for each in arrived),
        len(meanwhile),
        p50_before,
        p99_before,
        p50,
        p99,
        p99 / p99_before,
        p99 / p50_before,
        statistics.median(each.ttft_s for each in arrived),
        statistics.median(each.ttft_s / each.alone_s for each in arrived),
        sum(each.ended for each in arrived),
    )
