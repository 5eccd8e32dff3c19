"""Several needles: codes of several people, spread through a long text; the answer is one sentence per needle."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from winnow.errors import InputError
from winnow.tasks.draw import Draw, DrawnTask
from winnow.tasks.example import Example
from winnow.tasks.fill import Needle, ask_about_needles
from winnow.tasks.haystack import Haystack
from winnow.tasks.words import NAMES


def sentence(name: str, code: str) -> str:
    """The needle, and its part of the answer."""
    return f"The secret code of {name} is {code}."


def question(names: Sequence[str]) -> str:
    """The question; the answer lists the codes in the order of `names`."""
    return f"What are the secret codes of {listed(names)}? Give one sentence for each."


def listed(names: Sequence[str]) -> str:
    """The names as a sentence has them: "A, B and C"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


@dataclass(frozen=True)
class MultiNeedle(DrawnTask):
    """Retrieval of several keys in the style of RULER's niah_multiquery, arXiv:2404.06654.

    Needle i of n stands near depth (i + 1/2) / n, whatever depth is asked for; the question asks for them in another
    order. The score is the share of the sentences found word for word.
    """

    needles: int = 4
    haystack: Haystack | str | Path | None = None  # the bundled text, or a directory of texts
    name: str = "multi_needle"

    def __post_init__(self) -> None:
        if not 1 <= self.needles <= len(NAMES):
            raise InputError(f"needles={self.needles} must be between 1 and {len(NAMES)}")

    def make(self, draw: Draw) -> Example:
        names = draw.rng.sample(NAMES, self.needles)
        codes = [str(code) for code in draw.rng.sample(range(10000, 100000), self.needles)]
        said = tuple(sentence(name, code) for name, code in zip(names, codes, strict=True))
        hidden = [Needle(text, place) for text, place in zip(said, draw.spread(self.needles), strict=True)]
        return ask_about_needles(question(names), " ".join(said), said, hidden, self.haystack, draw)
