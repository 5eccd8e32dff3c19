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
KINDS = {"words": "word", "numbers": "number", "uuids": "UUID"}  # of a single value
DIGITS = 7  # of a number, as in RULER


class Said(NamedTuple):
    """What stands before the text, what is asked after it, and how the answer begins; with {kind} and {key}."""

    introduction: str
    question: str
    opening: str


class Wording(NamedTuple):
    """A needle, with {kind}, {key} and {value}, and what is said of a single value, and of several."""

    needle: str
    single: Said
    several: Said


WORDINGS = (
    Wording(
        "One of the special magic {kind}s for {key} is: {value}.",
        Said(
            "A special magic {kind} is hidden within the following text. Make sure to memorize it. I will quiz you "
            "about the {kind} afterwards.",
            "What is the special magic {kind} for {key} mentioned in the text above?",
            "The special magic {kind} for {key} mentioned in the text is",
        ),
        Said(
            "Some special magic {kind}s are hidden within the following text. Make sure to memorize them. I will quiz "
            "you about the {kind}s afterwards.",
            "What are all the special magic {kind}s for {key} mentioned in the text above?",
            "The special magic {kind}s for {key} mentioned in the text are",
        ),
    ),
    Wording(
        "The item {key} is registered with the {kind} {value}.",
        Said(
            "Somewhere the text below gives the registered {kind} of an item. Remember it, since you will be asked for "
            "it.",
            "With which {kind} does the text above say that the item {key} is registered?",
            "The text says that the item {key} is registered with the {kind}",
        ),
        Said(
            "Here and there the text below gives the registered {kind}s of certain items. Remember them, since you "
            "will be asked for them.",
            "With which {kind}s does the text above say that {key} is registered?",
            "The text says that {key} is registered with the {kind}s",
        ),
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
        if self.value not in KINDS:
            raise InputError(f"value={self.value!r} must be one of {', '.join(KINDS)}")
        check_form(self.form)

    def make(self, draw: Draw) -> Example:
        wording, kind = WORDINGS[self.form], KINDS[self.value]
        keys = draw_words(draw.rng, self.keys, self.form)
        values = _values(draw.rng, self.value, self.keys * self.values, self.form, keys)
        pairs = [(keys[i // self.values], value) for i, value in enumerate(values)]
        places = [draw.place()] if len(pairs) == 1 else draw.spread(len(pairs))
        needles = [
            Needle(wording.needle.format(kind=kind, key=key, value=value), place)
            for (key, value), place in zip(pairs, places, strict=True)
        ]
        asked = keys[: self.queries]
        answers = tuple(value for key, value in pairs if key in asked)
        before = wording.single if len(pairs) == 1 else wording.several
        after = wording.single if len(answers) == 1 else wording.several
        introduction = before.introduction.format(kind=kind)
        question, opening = (text.format(kind=kind, key=listed(asked)) for text in after[1:])
        reply = f"{', '.join(answers)}."
        limit = draw.allow(reply)

        def build(context: str, depths: tuple[float, ...]) -> Example:
            text, found = f"{introduction}\n\n{context}", depths[: len(answers)]
            return Example(text, question, reply, answers, found, limit, opening=opening)

        return fill_with_text(build, needles, self.haystack, draw)


def _values(rng: random.Random, kind: Value, count: int, form: int, keys: list[str]) -> list[str]:
    if kind == "words":
        return draw_words(rng, count, form, keys)
    if kind == "numbers":
        return [str(each) for each in rng.sample(range(10 ** (DIGITS - 1), 10**DIGITS), count)]
    return [str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(count)]
