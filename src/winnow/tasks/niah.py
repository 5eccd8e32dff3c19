"""RULER's needles: magic words, numbers or UUIDs that belong to keys, hidden in a long text."""

import random
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from winnow.errors import InputError
from winnow.tasks.draw import Draw, DrawnTask
from winnow.tasks.example import Example
from winnow.tasks.fill import Needle, fill_with_text
from winnow.tasks.forms import Form, check_form, draw_words
from winnow.tasks.haystack import Haystack
from winnow.tasks.multi_needle import listed

Value = Literal["words", "numbers", "uuids"]
ONE = {"words": "word", "numbers": "number", "uuids": "UUID"}
MANY = {"words": "words", "numbers": "numbers", "uuids": "UUIDs"}
DIGITS = 7  # of a number, as in RULER


class Wording(NamedTuple):
    """What is said of several values, and of a single one; {kind}, {key} and {value} are filled in."""

    introduction: str
    needle: str
    question: str
    opening: str
    single_introduction: str
    single_question: str
    single_opening: str


WORDINGS = (
    Wording(
        "Some special magic {kind} are hidden within the following text. Make sure to memorize them. I will quiz you "
        "about the {kind} afterwards.",
        "One of the special magic {kind} for {key} is: {value}.",
        "What are all the special magic {kind} for {key} mentioned in the text above?",
        "The special magic {kind} for {key} mentioned in the text are",
        "A special magic {kind} is hidden within the following text. Make sure to memorize it. I will quiz you about "
        "the {kind} afterwards.",
        "What is the special magic {kind} for {key} mentioned in the text above?",
        "The special magic {kind} for {key} mentioned in the text is",
    ),
    Wording(
        "Here and there the text below gives the registered {kind} of certain items. Remember them, since you will be "
        "asked for them.",
        "The item {key} is registered with the {kind} {value}.",
        "With which {kind} does the text above say that {key} is registered?",
        "The text says that {key} is registered with the {kind}",
        "Somewhere the text below gives the registered {kind} of an item. Remember it, since you will be asked for it.",
        "With which {kind} does the text above say that the item {key} is registered?",
        "The text says that the item {key} is registered with the {kind}",
    ),
)


@dataclass(frozen=True)
class Niah(DrawnTask):
    """RULER's needles in a haystack, arXiv:2404.06654, section 3, over real text; one needle unless told otherwise.

    keys: how many there are; values: of each; queries: how many keys are asked for. value: what a value is. form: which
    wording, 0 (RULER's) or 1, and which half of the words keys and words are made of: two sets of questions with
    nothing in common. A single needle stands at the depth asked for, several are spread over the text. The score is the
    share of the values asked for that are named. As in RULER the answer is begun for the model.
    """

    keys: int = 1
    values: int = 1
    queries: int = 1
    value: Value = "numbers"
    form: Form = 0
    haystack: Haystack | str | Path | None = None  # the bundled text, or a directory of texts
    name: str = "niah_single"

    def __post_init__(self) -> None:
        if not 1 <= self.queries <= self.keys or self.values < 1:
            raise InputError(
                f"queries={self.queries} must be from 1 to keys={self.keys}, and values={self.values} at least 1"
            )
        if self.value not in ONE:
            raise InputError(f"value={self.value!r} must be one of {', '.join(ONE)}")
        check_form(self.form)

    def make(self, draw: Draw) -> Example:
        wording, total = WORDINGS[self.form], self.keys * self.values
        keys = draw_words(draw.rng, self.keys, self.form)
        values = _values(draw.rng, self.value, total, self.form, keys)
        of = {key: values[i * self.values : (i + 1) * self.values] for i, key in enumerate(keys)}
        places = [draw.place()] if total == 1 else draw.spread(total)
        # RULER's needle speaks of several ("One of the special magic numbers"); a registered one is a single one.
        kind = (MANY, ONE)[self.form][self.value]
        said = {key: [wording.needle.format(kind=kind, key=key, value=each) for each in of[key]] for key in keys}
        needles = [Needle(text, places.pop()) for key in keys for text in said[key]]
        asked = keys[: self.queries]
        answers = tuple(each for key in asked for each in of[key])
        single = len(answers) == 1
        told = {"kind": (ONE if single else MANY)[self.value], "key": listed(asked)}
        introduction = (wording.single_introduction if total == 1 else wording.introduction).format(
            kind=(ONE if total == 1 else MANY)[self.value]
        )
        question = (wording.single_question if single else wording.question).format(**told)
        opening = (wording.single_opening if single else wording.opening).format(**told)
        reply = f"{', '.join(answers)}."
        limit = draw.allow(reply)

        def build(context: str, depths: tuple[float, ...]) -> Example:
            return Example(
                f"{introduction}\n\n{context}", question, reply, answers, depths[: len(answers)], limit, opening=opening
            )

        return fill_with_text(build, needles, self.haystack, draw)


def _values(rng: random.Random, kind: Value, count: int, form: int, keys: list[str]) -> list[str]:
    if kind == "words":
        return draw_words(rng, count, form, keys)
    if kind == "numbers":
        return [str(each) for each in rng.sample(range(10 ** (DIGITS - 1), 10**DIGITS), count)]
    return [str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(count)]
