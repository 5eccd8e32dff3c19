"""What a server is asked: pieces of books of about so many tokens, each from another place, plans in turns."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.load.client import Heard, Wanted, client_of, follow
from winnow.errors import InputError
from winnow.tasks.haystack import bundled_haystack

PROBE = 4000  # characters from which one learns how many a token has


@dataclass
class Prompts:
    """Draws requests. fields: of every body. plans: none is sent where there are none. salts: whether the server knows
    cache_salt, by which nothing is gone on from that another request has computed."""

    fields: dict[str, Any]
    plans: Sequence[str]
    salts: bool
    characters: float  # of a token
    draw: random.Random
    drawn: int = 0

    def wanted(self, kind: str, tokens: tuple[int, int], new: int) -> Wanted:
        """The next request: a prompt of so many tokens, the least and the most, by the server's own count or nearly."""
        number, self.drawn = self.drawn, self.drawn + 1
        text = "".join(bundled_haystack().sentences)
        size = min(len(text), max(1, round(self.draw.randint(*tokens) * self.characters)))
        start = self.draw.randrange(len(text) - size + 1)
        # Half are greedy, half are drawn by a seed.
        body = {"prompt": text[start : start + size], "max_tokens": new, "temperature": number % 2, "seed": number}
        plan = {"plan": self.plans[number // 2 % len(self.plans)]} if self.plans else {}
        return Wanted(number, kind, {**body, **plan, **self.fields})

    def apart(self, wanted: Wanted) -> Wanted:
        """The same request, of which the server has computed nothing yet."""
        salt = {"cache_salt": f"apart {wanted.number}"} if self.salts else {}
        return replace(wanted, body={**wanted.body, **salt})

    def each_plan(self, new: int) -> Iterator[Wanted]:
        """Short requests, two of every plan, to be asked before anything is measured."""
        for _ in range(2 * max(1, len(self.plans))):
            yield self.wanted("warm-up", (32, 64), new)


def learn(url: str, fields: dict[str, Any], plans: Sequence[str], salts: bool, seed: int) -> Prompts:
    """Ask once, to see how many characters a token has. Raises InputError with what the server says where it cannot."""
    prompts = Prompts(fields, plans, salts, 1.0, random.Random(seed))
    probe = prompts.wanted("probe", (PROBE, PROBE), 1)
    heard = asyncio.run(_once(url, probe))
    if not heard.complete or not heard.prompt:
        problem = heard.problem or "it does not say how many tokens a prompt has"
        raise InputError(f"the server does not answer as it should: {problem}")
    prompts.characters = len(probe.body["prompt"]) / heard.prompt
    return prompts


async def _once(url: str, wanted: Wanted) -> Heard:
    async with client_of(url) as client:
        return await follow(client, wanted)
