"""Many streams at once, short prompts and long ones: is any lost or another's, what does each wait for."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

import httpx2

from benchmarks.load.client import Heard, Wanted, client_of, follow_for
from benchmarks.load.figures import percentiles
from winnow.evaluation.evaluate import Progress


@dataclass(frozen=True)
class Span:
    """Requests, and what they took: new tokens, and seconds. cached: tokens of prompts that were not computed."""

    requests: int
    tokens: int
    cached: int
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True)
class StreamsRow:
    """Requests of a kind. lost: not answered to the end; compared: with the answer that the same request gets alone;
    same: those that are that answer; anothers: that are instead what another request gets alone. ttft_s, itl_s: p50,
    p90, p99, of requests and of gaps between pieces; prompt: tokens of the shortest and the longest.
    """

    kind: str
    requests: int
    lost: int
    compared: int
    same: int
    anothers: int
    refused: int
    prompt: tuple[int, int]
    ttft_s: tuple[float, ...] | None
    itl_s: tuple[float, ...] | None


def ask_all(
    url: str, wanted: Sequence[Wanted], rate: float | None, seed: int, done: Progress, seconds: float | None
) -> list[Heard]:
    """All of them, at once or, by chance, so many in a second on average; after so many seconds a client goes away.
    done: called with 1 after each."""
    return asyncio.run(_all(url, wanted, rate, seed, done, seconds))


def ask_alone(url: str, wanted: Iterable[Wanted], done: Progress) -> list[Heard]:
    """One after the other."""
    return asyncio.run(_each(url, wanted, done))


async def _all(
    url: str, wanted: Sequence[Wanted], rate: float | None, seed: int, done: Progress, seconds: float | None
) -> list[Heard]:
    async with client_of(url) as client:
        tasks = [asyncio.create_task(_one(client, each, done, seconds)) async for each in _arriving(wanted, rate, seed)]
        return sorted(await asyncio.gather(*tasks), key=lambda heard: heard.wanted.number)


async def _arriving(wanted: Sequence[Wanted], rate: float | None, seed: int) -> AsyncIterator[Wanted]:
    """In an order of their own; between two of them an exponential time, as of clients that know nothing of another."""
    draw = random.Random(seed)
    for each in draw.sample(wanted, len(wanted)):
        if rate is not None:
            await asyncio.sleep(draw.expovariate(rate))
        yield each


async def _each(url: str, wanted: Iterable[Wanted], done: Progress) -> list[Heard]:
    async with client_of(url) as client:
        return [await _one(client, each, done) for each in wanted]


async def _one(client: httpx2.AsyncClient, wanted: Wanted, done: Progress, seconds: float | None = None) -> Heard:
    heard = await follow_for(client, wanted, seconds)
    done(1)
    return heard


def span(heard: Sequence[Heard]) -> Span:
    """Of requests that were asked at any times, from the first question to the last answer."""
    first, last = min(each.asked_s for each in heard), max(each.ended_s for each in heard)
    return _span(heard, last - first)


def one_at_a_time(heard: Sequence[Heard]) -> Span:
    """Of requests of which none had company; what passed between them is left out."""
    return _span(heard, sum(each.ended_s - each.asked_s for each in heard))


def _span(heard: Sequence[Heard], seconds: float) -> Span:
    return Span(len(heard), sum(each.tokens for each in heard), sum(each.cached for each in heard), seconds)


def is_same(heard: Heard, alone: dict[int, str]) -> bool | None:
    """Whether it is what the request gets alone; None where that was not asked, or it is not whole."""
    expected = alone.get(heard.wanted.number)
    return None if expected is None or not heard.complete else heard.text == expected


def summarise_streams(heard: Sequence[Heard], alone: Sequence[Heard]) -> list[StreamsRow]:
    """A row per kind of request, in the order in which they come."""
    expected = {each.wanted.number: each.text for each in alone if each.complete}
    kinds = dict.fromkeys(each.wanted.kind for each in heard)
    return [_row(kind, [each for each in heard if each.wanted.kind == kind], expected) for kind in kinds]


def _row(kind: str, heard: Sequence[Heard], alone: dict[int, str]) -> StreamsRow:
    found = [is_same(each, alone) for each in heard]
    others = set(alone.values())
    return StreamsRow(
        kind,
        len(heard),
        sum(not each.complete for each in heard),
        sum(same is not None for same in found),
        sum(same is True for same in found),
        sum(same is False and each.text in others for each, same in zip(heard, found, strict=True)),
        sum(each.refused for each in heard),
        (min(each.prompt for each in heard), max(each.prompt for each in heard)),
        percentiles([each.ttft_s for each in heard if each.ttft_s is not None]),
        percentiles([gap for each in heard for gap in each.gaps]),
    )
