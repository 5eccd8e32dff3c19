"""Variable tracking: a value is stored and copied on, in a long text; which variables hold it?"""

import itertools
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from winnow.errors import InputError
from winnow.tasks.draw import Draw, DrawnTask
from winnow.tasks.example import Example
from winnow.tasks.fill import Needle, ask_about_needles
from winnow.tasks.forms import Form, check_form
from winnow.tasks.haystack import Haystack


class Wording(NamedTuple):
    """How a value is stored in {name}, how it is copied from {before} to {after}, what is asked, letters of a name."""

    stored: str
    copied: str
    question: str
    letters: int


WORDINGS = (
    Wording(
        "The value {value} is stored in {name}.",
        "{before} is copied to {after}.",
        "Which variables hold the value {value}? Follow the copies.",
        3,
    ),
    Wording(
        "VAR {name} = {value}.",
        "VAR {after} = VAR {before}.",
        "Find all variables that are assigned the value {value} in the text above, directly or through others.",
        5,
    ),
)


def chain(names: Sequence[str], value: str, form: int = 0) -> list[str]:
    """The sentences of one chain: the first variable gets the value, each other one its predecessor."""
    wording, pairs = WORDINGS[form], itertools.pairwise(names)
    first = wording.stored.format(name=names[0], value=value)
    return [first, *(wording.copied.format(before=before, after=after) for before, after in pairs)]


def question(value: str, form: int = 0) -> str:
    """The question about one value."""
    return WORDINGS[form].question.format(value=value)


def reply(names: Sequence[str], value: str, form: int = 0) -> str:
    """The answer in the wanted form: the chain itself, a sentence per variable."""
    return " ".join(chain(names, value, form))


def draw_names(rng: random.Random, count: int, form: int = 0) -> list[str]:
    """`count` distinct names of capital letters."""
    names: set[str] = set()
    while len(names) < count:
        names.add("".join(rng.choices(string.ascii_uppercase, k=WORDINGS[form].letters)))
    return rng.sample(sorted(names), count)


@dataclass(frozen=True)
class Variables(DrawnTask):
    """RULER's variable tracking, arXiv:2404.06654, over book text; a chain stands in order, chains interleave.

    RULER writes `VAR X2 = VAR X1`, target first, as `form` 1 does; the sentences of form 0 name the source first, so a
    small model that can only look up what followed a name can still follow a chain. Names have three letters in form 0
    and five in form 1, so that the two share none. Sentences are spread over the whole text, whatever depth is asked
    for. The score is the share of the variables of the asked chain that are named.
    """

    chains: int = 2  # the value of one is asked for, the others distract
    hops: int = 2  # copies in a chain
    form: Form = 0
    haystack: Haystack | str | Path | None = None  # the bundled text, or a directory of texts
    name: str = "variables"

    def __post_init__(self) -> None:
        if self.chains < 1 or self.hops < 0 or self.chains * (self.hops + 1) > 1000:
            raise InputError(
                f"chains={self.chains} must be at least 1 and hops={self.hops} at least 0, "
                "with at most 1000 variables in all"
            )
        check_form(self.form)

    def make(self, draw: Draw) -> Example:
        length = self.hops + 1
        names = draw_names(draw.rng, self.chains * length, self.form)
        values = [str(value) for value in draw.rng.sample(range(10000, 100000), self.chains)]
        groups = [names[i * length : (i + 1) * length] for i in range(self.chains)]
        needles = [
            Needle(text, place)
            for group, value in zip(groups, values, strict=True)
            for text, place in zip(
                chain(group, value, self.form), sorted(draw.rng.random() for _ in group), strict=True
            )
        ]
        asked, value = groups[0], values[0]
        said = reply(asked, value, self.form)
        return ask_about_needles(question(value, self.form), said, tuple(asked), needles, self.haystack, draw)
