"""Variable tracking: a value is stored and copied on, in a long text; which variables hold it?"""

import itertools
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from winnow.errors import InputError
from winnow.tasks.draw import Draw, DrawnTask
from winnow.tasks.example import Example
from winnow.tasks.fill import Needle, ask_about_needles
from winnow.tasks.haystack import Haystack


def chain(names: Sequence[str], value: str) -> list[str]:
    """The sentences of one chain: the first variable gets the value, each other one its predecessor."""
    first = f"The value {value} is stored in {names[0]}."
    return [first, *(f"{before} is copied to {after}." for before, after in itertools.pairwise(names))]


def question(value: str) -> str:
    """The question about one value."""
    return f"Which variables hold the value {value}? Follow the copies."


def reply(names: Sequence[str], value: str) -> str:
    """The answer in the wanted form: the chain itself, a sentence per variable."""
    return " ".join(chain(names, value))


def draw_names(rng: random.Random, count: int) -> list[str]:
    """`count` distinct names of three capital letters."""
    names: set[str] = set()
    while len(names) < count:
        names.add("".join(rng.choices(string.ascii_uppercase, k=3)))
    return rng.sample(sorted(names), count)


@dataclass(frozen=True)
class Variables(DrawnTask):
    """RULER's variable tracking, arXiv:2404.06654, over book text; a chain stands in order, chains interleave.

    RULER writes `VAR X2 = VAR X1`, target first; the sentences here name the source first, so a small model that can
    only look up what followed a name can still follow a chain. They are spread over the whole text, whatever depth is
    asked for. The score is the share of the variables of the asked chain that are named.
    """

    chains: int = 2  # the value of one is asked for, the others distract
    hops: int = 2  # copies in a chain
    haystack: Haystack | str | Path | None = None  # the bundled text, or a directory of texts
    name: str = "variables"

    def __post_init__(self) -> None:
        if self.chains < 1 or self.hops < 0 or self.chains * (self.hops + 1) > 1000:
            raise InputError(
                f"chains={self.chains} must be at least 1 and hops={self.hops} at least 0, "
                "with at most 1000 variables in all"
            )

    def make(self, draw: Draw) -> Example:
        length = self.hops + 1
        names = draw_names(draw.rng, self.chains * length)
        values = [str(value) for value in draw.rng.sample(range(10000, 100000), self.chains)]
        groups = [names[i * length : (i + 1) * length] for i in range(self.chains)]
        needles = [
            Needle(text, place)
            for group, value in zip(groups, values, strict=True)
            for text, place in zip(chain(group, value), sorted(draw.rng.random() for _ in group), strict=True)
        ]
        asked, value = groups[0], values[0]
        return ask_about_needles(question(value), reply(asked, value), tuple(asked), needles, self.haystack, draw)
