"""Requests of mixed plans, some of which their client leaves: does the server's memory come back to what it was."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import httpx2

from benchmarks.load.client import Heard, Wanted, client_of, follow
from benchmarks.load.prompts import Prompts
from benchmarks.load.server import Server
from winnow.evaluation.evaluate import Progress

QUIET_S = 1.0  # that a server has to end what was left, before its memory is looked at


@dataclass(frozen=True)
class Look:
    """The server after so many requests, when nothing is under way. retained: bytes of sequences that have ended;
    reserved, running: of those that have not; all None where it does not say."""

    requests: int
    resident: int | None
    retained: int | None
    reserved: int | None
    running: int | None


@dataclass(frozen=True)
class Round:
    """Requests between two looks, and how they ended: left, complete, or what went wrong."""

    ends: dict[str, int]
    look: Look


@dataclass(frozen=True)
class Mix:
    """What is asked. length: prompt tokens, the least and the most; aborts: the share that their client leaves,
    somewhere before the end; together: how many are asked at once."""

    length: tuple[int, int]
    new: int
    aborts: float
    together: int


def measure_memory(
    server: Server, prompts: Prompts, mix: Mix, requests: Sequence[int], progress: Progress
) -> Iterator[Round]:
    """So many requests, and a look, again and again. progress: called with 1 after every request."""
    done = 0
    for count in requests:
        wanted = [prompts.wanted("mixed", mix.length, mix.new) for _ in range(count)]
        leaves = [_leaves(prompts, mix) for _ in wanted]
        heard = asyncio.run(_ask(server.url, wanted, leaves, mix.together, progress))
        done += count
        yield Round(dict(Counter(map(_end, heard))), _look(server, done))


def _leaves(prompts: Prompts, mix: Mix) -> int | None:
    """After how many pieces the client of a request leaves; 0: while its prompt is computed, or waits."""
    return prompts.draw.randrange(mix.new) if prompts.draw.random() < mix.aborts else None


async def _ask(
    url: str, wanted: Sequence[Wanted], leaves: Sequence[int | None], together: int, progress: Progress
) -> list[Heard]:
    left = iter(zip(wanted, leaves, strict=True))
    async with client_of(url) as client:
        found = await asyncio.gather(*(_one_by_one(client, left, progress) for _ in range(together)))
    return [heard for each in found for heard in each]


async def _one_by_one(
    client: httpx2.AsyncClient, left: Iterator[tuple[Wanted, int | None]], progress: Progress
) -> list[Heard]:
    heard = []
    for wanted, pieces in left:
        heard.append(await follow(client, wanted, pieces))
        progress(1)
    return heard


def _end(heard: Heard) -> str:
    return "left" if heard.left else "complete" if heard.complete else str(heard.problem)


def _look(server: Server, requests: int) -> Look:
    time.sleep(QUIET_S)
    found = server.metrics()
    shown = (found.get(name) for name in ("cache_retained_bytes", "cache_reserved_bytes", "num_requests_running"))
    return Look(requests, server.resident(), *(None if each is None else int(each) for each in shown))
