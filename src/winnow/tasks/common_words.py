"""Common words: a long numbered list of words, in which ten come more often than all others."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from winnow.errors import InputError
from winnow.tasks.draw import Draw, DrawnTask
from winnow.tasks.example import Example
from winnow.tasks.fill import fill_with_records
from winnow.tasks.forms import Form, check_form
from winnow.tasks.haystack import Haystack, resolve_haystack

COMMON = 10
OFTEN, SELDOM = 30, 3  # how often RULER repeats common words and others
PART = 3  # one entry of so many is a common word
WORD = re.compile(r"\b[a-z]{4,9}\b")
WORDINGS = (
    (
        "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
        "appear most often.",
        "What are the 10 most common words in the above list?",
        "The top 10 words that appear most often in the list are:",
    ),
    (
        "Here is a list in which some entries are repeated again and again, and most are not.",
        "Name the 10 entries that the list above repeats most often.",
        "These 10 entries are repeated most often:",
    ),
)


@cache
def vocabulary(text: Haystack, form: int) -> tuple[str, ...]:
    """The form's half of the words of four to nine letters that a text has in lower case."""
    return tuple(sorted({word for sentence in text.sentences for word in WORD.findall(sentence)}))[form::2]


@dataclass(frozen=True)
class CommonWords(DrawnTask):
    """RULER's common words extraction, arXiv:2404.06654, section 3, with words of a real text.

    RULER repeats common words 30 times and others 3 times, in lists of one length. Here a third of the list is common
    words whatever its length, and others come a tenth as often as these. What is missing to the length asked for is
    less than two entries; a depth is ignored. The answer is begun for the model, without RULER's worked example. The
    score is the share of the common words that are named.
    """

    form: Form = 0
    haystack: Haystack | str | Path | None = None  # where words are from: the bundled text, or a directory of texts
    name: str = "common_words"

    def __post_init__(self) -> None:
        check_form(self.form)

    def make(self, draw: Draw) -> Example:
        known = vocabulary(resolve_haystack(self.haystack), self.form)
        if len(known) < 2 * COMMON:
            raise InputError(f"the haystack has {len(known)} different words of 4 to 9 letters; give a longer one")
        chosen = draw.rng.sample(known, len(known))
        common, others = chosen[:COMMON], chosen[COMMON:]
        order = [draw.rng.random() for _ in range(draw.tokens)]
        introduction, question, opening = WORDINGS[self.form]
        answers = tuple(common)
        reply = "\n".join(f"{number}. {word}" for number, word in enumerate(common, start=1))
        limit = draw.allow(reply)

        def build(count: int) -> Example:
            often = max(2, count // (PART * COMMON))
            seldom = max(1, often * SELDOM // OFTEN)
            rest = max(0, count - often * COMMON)
            if -(-rest // seldom) > len(others):
                raise InputError(f"{count} entries need more words than the haystack has; use fewer tokens")
            entries = [word for word in common for _ in range(often)]
            entries += [others[place // seldom] for place in range(rest)]
            mixed = [word for _, word in sorted(zip(order, entries, strict=False))]
            listed = " ".join(f"{number}. {word}" for number, word in enumerate(mixed, start=1))
            return Example(f"{introduction}\n\n{listed}", question, reply, answers, (), limit, opening=opening)

        sample = build(20 * COMMON).context
        return fill_with_records(build, draw, sample, 20 * COMMON)
