"""Number string: a ten-digit number that belongs to a city, hidden in a long text."""

import random
from dataclasses import dataclass
from pathlib import Path

from winnow.tasks.draw import Draw, DrawnTask
from winnow.tasks.example import Example
from winnow.tasks.fill import Needle, ask_about_needles
from winnow.tasks.haystack import Haystack
from winnow.tasks.words import CITIES

DIGITS = 10


def sentence(city: str, number: str) -> str:
    """The needle, and the answer in the wanted form."""
    return f"The special magic number for {city} is {number}."


def question(city: str) -> str:
    """The question about one city."""
    return f"What is the special magic number for {city}?"


def draw_number(rng: random.Random, digits: int = DIGITS) -> str:
    """A number of exactly `digits` digits."""
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


@dataclass(frozen=True)
class Number(DrawnTask):
    """A single needle in the style of RULER's niah_single, arXiv:2404.06654, over book text."""

    haystack: Haystack | str | Path | None = None  # the bundled text, or a directory of texts
    name: str = "number"

    def make(self, draw: Draw) -> Example:
        city, number = draw.rng.choice(CITIES), draw_number(draw.rng)
        said = sentence(city, number)
        return ask_about_needles(question(city), said, (number,), [Needle(said, draw.place())], self.haystack, draw)
