"""One long document in one prompt: between documents of its kind where it is shorter, cut where it is longer."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

from winnow.errors import InputError
from winnow.tasks.example import Example, render
from winnow.tasks.fill import Needle, fill_with_text
from winnow.tasks.haystack import Haystack

BEGIN, END = "=== BEGIN DOCUMENT ===", "=== END DOCUMENT ==="
_CHARACTERS = 12  # more than a token has in prose, on average
_MARGIN = 8  # tokens left free: white space around the document may count otherwise there
_LEAST = 200  # characters; a document cut to less says nothing


def ask_about_document(
    document: str,
    others: Sequence[str],
    question: str,
    references: tuple[str, ...],
    max_tokens: int,
    *,
    span: tuple[int, int] | None = None,
    rng: random.Random,
    tokens: int,
    tokenizer: PreTrainedTokenizerBase,
    depth: float | None,
) -> Example:
    """Mark `document` and place it at `depth` among text of `others` so that the prompt fills `tokens` tokens.

    A document that is too long loses its middle, as in LongBench, arXiv:2308.14508, section 4.1; with a `span` (start
    and end of the answer, in characters) its ends go instead, so that the answer stands near `depth` of what is left.
    The example has the span as its answer and the place of it as its depth; without one it has references only.
    Raises InputError if `tokens` is too small for the question and a little of the document.
    """
    place = rng.random() if depth is None else depth
    answers = () if span is None else (document[slice(*span)],)

    def example(context: str, depths: tuple[float, ...]) -> Example:
        return Example(context, question, references[0], answers, depths, max_tokens, references)

    part, start = _fitting(
        document, span, place, lambda text: len(render(example(_marked(text), ()), tokenizer)), tokens
    )

    def build(context: str, depths: tuple[float, ...]) -> Example:
        if span is None:
            return example(context, ())
        at = context.index(BEGIN) + len(BEGIN) + 1 + span[0] - start
        return example(context, (min(1.0, at / max(1, len(context) - span[1] + span[0])),))

    haystack = _surroundings(others, rng, tokens * _CHARACTERS)
    needle = Needle("\n\n" + _marked(part) + "\n\n", place)
    return fill_with_text(build, [needle], haystack, rng, tokens=tokens, tokenizer=tokenizer)


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
