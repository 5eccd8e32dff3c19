"""Frequent words: coded words stand between the sentences of a long text; which three come most often?"""

import random
import string
from dataclasses import dataclass
from pathlib import Path

from winnow.tasks.draw import Draw, DrawnTask
from winnow.tasks.example import Example
from winnow.tasks.fill import Needle, fill_with_text
from winnow.tasks.forms import Form, check_form
from winnow.tasks.haystack import Haystack

ASKED = 3
LETTERS = 6
SLOPE = 1.5  # of the word at rank r there are most / r ** SLOPE
LEAST = 12  # of the most frequent word: 12, 4 and 2 are told from 1
TOKENS = 100  # of the prompt for each time that the most frequent word comes
WORDINGS = (
    (
        "Read the following text and track the frequency of each coded word, which stands in square brackets.",
        "[{}]",
        "What are the three most frequently appeared coded words in the above text?",
        "The three most frequently appeared coded words are:",
    ),
    (
        "Between the sentences of this text stand marks, each written as <letters>. Count how often every mark comes.",
        "<{}>",
        "Which three marks come most often in the text above?",
        "These three marks come most often:",
    ),
)


@dataclass(frozen=True)
class FrequentWords(DrawnTask):
    """RULER's frequent words extraction, arXiv:2404.06654, section 3, between the sentences of a real text.

    In RULER coded words are the whole text, and the frequency of rank r falls as 1 / r^2; here as 1 / r^1.5, rounded
    down, so that in short prompts too the third is more frequent than the fourth. They stand anywhere, whatever depth
    is asked for. The score is the share of the three that are named.
    """

    form: Form = 0
    haystack: Haystack | str | Path | None = None  # the bundled text, or a directory of texts
    name: str = "frequent_words"

    def __post_init__(self) -> None:
        check_form(self.form)

    def make(self, draw: Draw) -> Example:
        counts = frequencies(max(LEAST, draw.tokens // TOKENS))
        coded = coded_words(draw.rng, len(counts), self.form)
        introduction, mark, question, opening = WORDINGS[self.form]
        needles = [
            Needle(mark.format(word), draw.rng.random())
            for word, count in zip(coded, counts, strict=True)
            for _ in range(count)
        ]
        answers = tuple(coded[:ASKED])
        reply = ", ".join(map(mark.format, answers))
        limit = draw.allow(reply)

        def build(context: str, depths: tuple[float, ...]) -> Example:
            return Example(f"{introduction}\n\n{context}", question, reply, answers, (), limit, opening=opening)

        return fill_with_text(build, needles, self.haystack, draw)


def frequencies(most: int) -> list[int]:
    """How often the words come, the most frequent first; at least once."""
    found: list[int] = []
    while count := int(most / (len(found) + 1) ** SLOPE):
        found.append(count)
    return found


def coded_words(rng: random.Random, count: int, form: int) -> list[str]:
    """`count` distinct words of letters of the form's half of the alphabet."""
    words: set[str] = set()
    while len(words) < count:
        words.add("".join(rng.choices(string.ascii_lowercase[form::2], k=LETTERS)))
    return rng.sample(sorted(words), count)
