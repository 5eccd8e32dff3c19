"""Many documents in one prompt: those that answer the question at wanted places, others around them."""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from winnow.errors import InputError
from winnow.tasks.draw import Draw
from winnow.tasks.example import Example
from winnow.tasks.fill import fill_with_records

_SAMPLE = 16  # documents tokenised to guess how long one is


class Document(NamedTuple):
    title: str
    text: str


def numbered(index: int, document: Document) -> str:
    """Document `index` (from 0) as Lost in the Middle, arXiv:2307.03172, writes it in a prompt."""
    return f"Document [{index + 1}](Title: {document.title}) {document.text}"


def fill_with_documents(
    gold: Sequence[Document],
    others: Iterator[Document],
    places: Sequence[float],
    build: Callable[[str, tuple[float, ...]], Example],
    draw: Draw,
) -> Example:
    """The example of the `gold` documents and the first of `others` that fit the tokens wanted, to within one document.

    places: where each gold document stands, 0 .. 1; those around it are in random order. `build` makes the example from
    the text of all documents and the true places.
    Raises InputError if there are too few tokens for the gold documents, or more than all documents have.
    """
    taken = list(itertools.islice(others, _SAMPLE))
    seed = draw.rng.getrandbits(64)
    sample = [numbered(index, document) for index, document in enumerate([*gold, *taken])]

    def of(count: int) -> Example:
        around = max(0, count - len(gold))
        taken.extend(itertools.islice(others, max(0, around - len(taken))))
        if around > len(taken):
            raise InputError(
                f"{draw.tokens} tokens need {count} documents, but the data has {len(gold) + len(taken)}; use fewer"
                " tokens"
            )
        chosen = taken[:around]
        random.Random(seed).shuffle(chosen)
        return build(*_placed(gold, chosen, places))

    return fill_with_records(of, draw, "\n".join(sample), len(sample))


def _placed(gold: Sequence[Document], around: list[Document], places: Sequence[float]) -> tuple[str, tuple[float, ...]]:
    """The context, and where each gold document stands in it."""
    last = len(gold) + len(around) - 1
    order: list[tuple[int, Document]] = [(-1, document) for document in around]  # with the index in `gold`
    for index in sorted(range(len(gold)), key=lambda index: places[index]):
        order.insert(round(places[index] * last), (index, gold[index]))
    texts = [numbered(i, document) for i, (_, document) in enumerate(order)]
    context, start, found = "\n".join(texts), 0, [0.0] * len(gold)
    for (index, _), text in zip(order, texts, strict=True):
        if index >= 0:
            found[index] = start / max(1, len(context) - len(text))
        start += len(text) + 1
    return context, tuple(found)
