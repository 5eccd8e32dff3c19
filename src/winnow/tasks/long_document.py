"""Questions about one long document: it stands between documents of its kind where it is shorter, or is cut."""

import random
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from winnow.errors import InputError
from winnow.tasks.draw import Draw, DrawnTask
from winnow.tasks.example import Example
from winnow.tasks.fill import Needle, fill_with_text
from winnow.tasks.haystack import Haystack
from winnow.tasks.sources import Record

BEGIN, END = "=== BEGIN DOCUMENT ===", "=== END DOCUMENT ==="
_CHARACTERS = 12  # more than a token has in prose, on average
_MARGIN = 8  # tokens left free: white space around the document may count otherwise there
_LEAST = 200  # characters; a document cut to less says nothing


@dataclass(frozen=True)
class DocumentTask(DrawnTask):
    """A question about one of the documents of a file; see `ask_about_document`.

    prompt: what follows the document, with a place for the question. max_tokens: of an answer. spans: whether the first
    reference is a part of the document.
    """

    data: str | Path

    prompt: ClassVar[str]
    max_tokens: ClassVar[int]
    spans: ClassVar[bool] = False

    @abstractmethod
    def load(self) -> Sequence[Record]:
        """The records, checked; each has a `document`."""

    @abstractmethod
    def asked(self, record: Record) -> list[tuple[str, list[str]]]:
        """The questions of a record, each with its references."""

    def make(self, draw: Draw) -> Example:
        every = self.load()
        chosen = draw.rng.randrange(len(every))
        document = every[chosen]["document"]
        question, references = draw.rng.choice(self.asked(every[chosen]))
        others = [record["document"] for index, record in enumerate(every) if index != chosen] or [document]
        start = document.index(references[0]) if self.spans else 0
        return ask_about_document(
            document,
            others,
            self.prompt.format(question),
            tuple(references),
            self.max_tokens,
            span=(start, start + len(references[0])) if self.spans else None,
            draw=draw,
        )


def ask_about_document(
    document: str,
    others: Sequence[str],
    question: str,
    references: tuple[str, ...],
    max_tokens: int,
    *,
    span: tuple[int, int] | None = None,
    draw: Draw,
) -> Example:
    """Mark `document` and place it at the depth wanted among text of `others` so that the prompt fills its tokens.

    A document that is too long loses its middle, as in LongBench, arXiv:2308.14508, section 4.1; with a `span` (start
    and end of the answer, in characters) its ends go instead, so that the answer stands near that depth of what is
    left. The example has the span as its answer and the place of it as its depth; without one it has references only.
    Raises InputError if there are too few tokens for the question and a little of the document.
    """
    place = draw.place()
    answers = () if span is None else (document[slice(*span)],)

    def example(context: str, depths: tuple[float, ...]) -> Example:
        return Example(context, question, references[0], answers, depths, max_tokens, references)

    part, start = _fitting(document, span, place, lambda text: draw.length(example(_marked(text), ())), draw.tokens)

    def build(context: str, depths: tuple[float, ...]) -> Example:
        if span is None:
            return example(context, ())
        at = context.index(BEGIN) + len(BEGIN) + 1 + span[0] - start
        return example(context, (min(1.0, at / max(1, len(context) - span[1] + span[0])),))

    haystack = _surroundings(others, draw.rng, draw.tokens * _CHARACTERS)
    return fill_with_text(build, [Needle("\n\n" + _marked(part) + "\n\n", place)], haystack, draw)


def _marked(document: str) -> str:
    return f"{BEGIN}\n{document}\n{END}"


def _fitting(
    document: str, span: tuple[int, int] | None, place: float, measure: Callable[[str], int], tokens: int
) -> tuple[str, int]:
    """As much of the document as fits, and where in it that begins; `measure` gives the tokens of the whole prompt."""
    part, start, characters = document, 0, len(document)
    while (length := measure(part)) > tokens - _MARGIN:
        characters = min(int(characters * (tokens - _MARGIN) / length), characters - 50)
        least = _LEAST if span is None else span[1] - span[0] + _LEAST
        if characters < min(least, len(document)):
            raise InputError(f"{tokens} tokens are too few for this task; it needs at least {length}")
        if span is None:
            half = characters // 2
            part = document[:half] + " ... " + document[-half:]
        else:
            before = int(place * (characters - span[1] + span[0]))
            start = max(0, min(span[0] - before, len(document) - characters))
            part = document[start : start + characters]
    return part, start


def _surroundings(others: Sequence[str], rng: random.Random, characters: int) -> Haystack:
    """Text of some of the other documents, at least `characters` long where there are so many."""
    chosen: list[str] = []
    for text in rng.sample(others, len(others)):
        chosen.append(text)
        characters -= len(text)
        if characters <= 0:
            break
    return Haystack.from_text("\n\n".join(chosen))
