"""Pass key: one five-digit key hidden in a long text."""

from dataclasses import dataclass
from pathlib import Path

from winnow.tasks.draw import Draw, DrawnTask
from winnow.tasks.example import Example
from winnow.tasks.fill import Needle, ask_about_needles
from winnow.tasks.haystack import Haystack

QUESTION = "What is the pass key?"


def sentence(key: str) -> str:
    """The needle."""
    return f"The pass key is {key}. Remember it. {key} is the pass key."


def reply(key: str) -> str:
    """The answer in the wanted form."""
    return f"The pass key is {key}."


@dataclass(frozen=True)
class Passkey(DrawnTask):
    """The pass key task of Landmark Attention, arXiv:2305.16300, with book text for its repeated filler sentences."""

    haystack: Haystack | str | Path | None = None  # the bundled text, or a directory of texts
    name: str = "passkey"

    def make(self, draw: Draw) -> Example:
        key = str(draw.rng.randrange(10000, 100000))
        needle = Needle(sentence(key), draw.place())
        return ask_about_needles(QUESTION, reply(key), (key,), [needle], self.haystack, draw)
