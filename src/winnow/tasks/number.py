"""Number string: a ten-digit number that belongs to a city, hidden in a long text."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from winnow.tasks.example import Example, reply_tokens, share_found
from winnow.tasks.fill import Needle, fill_with_text
from winnow.tasks.haystack import Haystack, resolve_haystack
from winnow.tasks.words import CITIES

DIGITS = 10


def sentence(city: str, number: str) -> str:
    """The needle."""
    return f"The special magic number for {city} is {number}."


def question(city: str) -> str:
    """The question about one city."""
    return f"What is the special magic number for {city}?"


def draw_number(rng: random.Random, digits: int = DIGITS) -> str:
    """A number of exactly `digits` digits."""
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


@dataclass(frozen=True)
class Number:
    """A single needle in the style of RULER's niah_single, arXiv:2404.06654, over book text."""

    haystack: Haystack | str | Path | None = None  # the bundled text, or a directory of texts
    name: str = "number"

    def example(
        self, rng: random.Random, *, tokens: int, tokenizer: PreTrainedTokenizerBase, depth: float | None = None
    ) -> Example:
        """One example; see `Task.example`."""
        city, number = rng.choice(CITIES), draw_number(rng)
        needle = Needle(sentence(city, number), rng.random() if depth is None else depth)
        limit = reply_tokens(sentence(city, number), tokenizer)

        def build(context: str, depths: tuple[float, ...]) -> Example:
            return Example(context, question(city), sentence(city, number), (number,), depths, limit)

        return fill_with_text(build, [needle], resolve_haystack(self.haystack), rng, tokens=tokens, tokenizer=tokenizer)

    def score(self, example: Example, text: str) -> float:
        """1 if the whole number is found, else 0."""
        return share_found(example, text)
