"""What is hidden in a text and asked for: wordings and names that no task of `winnow.tasks` has.

Names are made of syllables, values are amounts, times, dates and words of the texts; `tests/recipes` hold the wordings
and the names against those of the tasks.
"""

from __future__ import annotations

import calendar
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

FIRST = "Bre Cal Dor Fen Gris Hal Jor Kel Lun Mar Nor Ost Pel Quin Ros Sel Tav Ulm Ves Wyn".split()  # noqa: SIM905
LAST = "aby anda brook dale den elia ford gate holt ick ina lo mere mond ney old ric sley ton wick".split()  # noqa: SIM905


@dataclass(frozen=True)
class Kind:
    """Sentences that state a fact about {who}, and questions for it; value: draws what {what} is, told the words of a
    text. several: asks for all values, where one may have more than one."""

    statements: tuple[str, ...]
    questions: tuple[str, ...]
    replies: tuple[str, ...]
    value: Callable[[random.Random, Sequence[str]], str]
    several: str = ""


@dataclass(frozen=True)
class Fact:
    """A fact in so many sentences, each of which states one of the values."""

    kind: Kind
    who: str
    values: tuple[str, ...]

    def sentences(self, rng: random.Random) -> list[str]:
        return [rng.choice(self.kind.statements).format(who=self.who, what=value) + " " for value in self.values]

    def ask(self, rng: random.Random) -> tuple[str, str]:
        """A question, and its answer."""
        if len(self.values) > 1:
            return self.kind.several.format(who=self.who), f"{', '.join(self.values)}."
        reply = rng.choice(self.kind.replies).format(who=self.who, what=self.values[0])
        return rng.choice(self.kind.questions).format(who=self.who), reply


def new_name(rng: random.Random, without: set[str]) -> str:
    """Of one or two parts; none of `without`, which it joins."""
    while True:
        name = " ".join(rng.choice(FIRST) + rng.choice(LAST) for _ in range(rng.choice((1, 2))))
        if not any(part in known.split() for known in without for part in name.split()):
            without.add(name)
            return name


def _amount(rng: random.Random, words: Sequence[str]) -> str:
    return str(rng.randrange(12, 10 ** rng.randint(2, 6)))


def _combination(rng: random.Random, words: Sequence[str]) -> str:
    return "-".join(f"{rng.randrange(100):02}" for _ in range(rng.randint(2, 4)))


def _date(rng: random.Random, words: Sequence[str]) -> str:
    return f"{rng.randint(1, 28)} {rng.choice(calendar.month_name[1:])} {rng.randint(1700, 2090)}"


def _time(rng: random.Random, words: Sequence[str]) -> str:
    return f"{rng.randint(0, 23)}:{rng.randrange(60):02}"


def _words(rng: random.Random, words: Sequence[str]) -> str:
    return " ".join(rng.sample(words, rng.randint(1, 2)))


def _mark(rng: random.Random, words: Sequence[str]) -> str:
    letters = "".join(rng.choices("BCDFGHJKLMNPQRSTVWXZ", k=rng.randint(2, 3)))
    return f"{letters}{rng.randrange(10, 10_000)}"


def _inscription(rng: random.Random, words: Sequence[str]) -> str:
    """Groups of signs, 14 to 47 characters in all, none of which can be guessed from those before."""
    signs = rng.choice(("BCDFGHJKLMNPQRSTVWXZ", "bcdfghjklmnpqrstvwxz", "0123456789"))
    signs = rng.choice((signs, signs + "0123456789"))
    groups = ("".join(rng.choices(signs, k=rng.randint(2, 5))) for _ in range(rng.randint(5, 8)))
    return rng.choice(" ./:").join(groups)


KINDS = (
    Kind(
        ("The weigher at {who} wrote down {what} sacks that day.", "At {who} they counted {what} sacks."),
        ("How many sacks were counted at {who}?", "What did the weigher at {who} write down?"),
        ("{what} sacks.", "At {who} it was {what} sacks."),
        _amount,
    ),
    Kind(
        ("Mr. {who}'s strongbox opens with {what}.", "To open the strongbox of Mr. {who} one turns to {what}."),
        ("With what combination does Mr. {who}'s strongbox open?", "How is the strongbox of Mr. {who} opened?"),
        ("{what}.", "With {what}."),
        _combination,
    ),
    Kind(
        ("The lease of {who} runs out on {what}.", "On {what} the lease of {who} comes to its end."),
        ("When does the lease of {who} run out?", "On which day does the lease of {who} end?"),
        ("On {what}.", "{what}."),
        _date,
    ),
    Kind(
        ("The ferry to {who} puts off at {what}.", "Those who go to {who} are to be at the pier by {what}."),
        ("At what hour does one leave for {who}?", "When is the ferry to {who}?"),
        ("At {what}.", "{what}."),
        _time,
        "At which hours does one leave for {who}? Name each, the first in the text first.",
    ),
    Kind(
        ("The watchword at {who} is \"{what}\".", "Nobody passes {who} who does not say \"{what}\"."),
        ("What has to be said at {who}?", "Which is the watchword at {who}?"),
        ("\"{what}\".", "{what}."),
        _words,
        "Which watchwords are there at {who}? Name each, the first in the text first.",
    ),
    Kind(
        ("The crate for {who} bears the mark {what}.", "Dr. {who}'s goods are marked {what}."),
        ("Which mark is on what was sent to {who}?", "How are the goods of {who} marked?"),
        ("{what}.", "The mark is {what}."),
        _mark,
        "Which marks are on what was sent to {who}? Name each, the first in the text first.",
    ),
)  # fmt: skip


INSCRIBED = Kind(
    ("The bell of {who} is inscribed {what}.", "Cut into the gate of {who} one reads {what}."),
    ("What is inscribed at {who}?", "Which signs were cut at {who}?"),
    ("{what}.", "One reads {what}."),
    _inscription,
)


def draw_fact(rng: random.Random, words: Sequence[str], names: set[str], kinds: Sequence[Kind] = KINDS) -> Fact:
    """words: of the text. names: those in use, to which a new one is added."""
    kind = rng.choice(kinds)
    count = rng.randint(2, 4) if kind.several and rng.random() < 0.3 else 1
    return Fact(kind, new_name(rng, names), tuple(kind.value(rng, words) for _ in range(count)))
