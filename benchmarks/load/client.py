"""A client of any server with OpenAI's API: streams, followed piece by piece; who is told to come back does."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx2

PATIENCE_S = 3600.0  # for the next piece: where all are let in, the last one waits for all others
COME_BACK = (429, 503)  # where the answer has Retry-After
SAID = 200  # characters of what a server says of an error
COUNTED = {"stream": True, "stream_options": {"include_usage": True}}


@dataclass(frozen=True)
class Wanted:
    """A request: its number, which kind it is of, and its body."""

    number: int
    kind: str
    body: dict[str, Any]


@dataclass
class Heard:
    """What a client got, and when, on the clock of `time.perf_counter`.

    asked_s: when it first asked; times: of every piece of text; ended_s: when the stream had ended. refused: how many
    times it was told to come back. prompt, cached, new: tokens, where the server says; cached ones are those of the
    prompt that it had computed before. finish: OpenAI's reason. problem: what went wrong; left: whether the client has
    gone away on purpose.
    """

    wanted: Wanted
    asked_s: float
    times: list[float] = field(default_factory=list)
    text: str = ""
    ended_s: float = 0.0
    refused: int = 0
    prompt: int = 0
    cached: int = 0
    new: int = 0
    finish: str | None = None
    problem: str | None = None
    left: bool = False

    @property
    def complete(self) -> bool:
        """Whether the stream ended as one that has succeeded does."""
        return self.problem is None and self.finish is not None

    @property
    def ttft_s(self) -> float | None:
        """From the first time that it was asked, however often the client had to come back."""
        return self.times[0] - self.asked_s if self.times else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between two pieces."""
        return [after - before for before, after in pairwise(self.times)]

    @property
    def tokens(self) -> int:
        """As the server counts them, else pieces."""
        return self.new or len(self.times)


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[httpx2.AsyncClient]:
    """As many connections as there are requests."""
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE_S, trust_env=False, limits=limits) as client:
        yield client


async def follow(client: httpx2.AsyncClient, wanted: Wanted, pieces: int | None = None) -> Heard:
    """Ask until it is let in, and follow the stream to its end; pieces: after how many the client leaves."""
    heard = Heard(wanted, time.perf_counter())
    await listen(client, heard, pieces)
    return heard


async def follow_for(client: httpx2.AsyncClient, wanted: Wanted, seconds: float | None) -> Heard:
    """The same, for so long; None: to the end."""
    heard = Heard(wanted, time.perf_counter())
    try:
        async with asyncio.timeout(seconds):
            await listen(client, heard)
    except TimeoutError:
        heard.problem, heard.ended_s = f"not whole after {seconds:g} s", time.perf_counter()
    return heard


async def listen(client: httpx2.AsyncClient, heard: Heard, pieces: int | None = None) -> None:
    """The same, for who looks at what has been heard meanwhile."""
    try:
        while (again_s := await _asked(client, heard, pieces)) is not None:
            heard.refused += 1
            await asyncio.sleep(again_s)
    except httpx2.TransportError as error:
        heard.problem = type(error).__name__
    heard.ended_s = time.perf_counter()
    if not (heard.problem or heard.left or heard.finish):
        heard.problem = "the stream ended without finish_reason"


async def _asked(client: httpx2.AsyncClient, heard: Heard, pieces: int | None) -> float | None:
    """Ask once. Returns the seconds after which to come back; None: the stream has ended, well or not."""
    async with client.stream("POST", "/v1/completions", json={**heard.wanted.body, **COUNTED}) as reply:
        again = reply.headers.get("retry-after", "")
        if reply.status_code in COME_BACK and again.isdigit():
            return float(again)
        if reply.status_code != 200:
            heard.problem = f"{reply.status_code}: {(await reply.aread()).decode(errors='replace')[:SAID]}"
            return None
        heard.left = pieces == 0
        if not heard.left:
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    _take(heard, json.loads(line[6:]))
                heard.left = pieces is not None and len(heard.times) >= pieces
                if heard.left or heard.problem is not None:
                    break
    return None


def _take(heard: Heard, event: dict[str, Any]) -> None:
    if "error" in event:
        heard.problem = str(event["error"])[:SAID]
        return
    if (usage := event.get("usage")) is not None:
        heard.prompt, heard.new = usage["prompt_tokens"], usage["completion_tokens"]
        heard.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    for choice in event.get("choices", ()):
        if choice.get("text"):
            heard.text += choice["text"]
            heard.times.append(time.perf_counter())
        heard.finish = choice.get("finish_reason") or heard.finish
