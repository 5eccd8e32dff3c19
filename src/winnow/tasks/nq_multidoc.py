"""Questions of Natural Questions over many Wikipedia passages, one of which holds the answer."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from winnow.errors import InputError
from winnow.tasks.documents import Document, fill_with_documents
from winnow.tasks.draw import Draw, DrawnTask
from winnow.tasks.example import Example
from winnow.tasks.metrics import best, contains
from winnow.tasks.sources import Record, records

MAX_TOKENS = 100  # of Lost in the Middle
INSTRUCTION = (
    "Write a high-quality answer for the given question using only the provided search results "
    "(some of which might be irrelevant)."
)


@cache
def load_passages(directory: str | Path) -> dict[Any, Document]:
    """The passages of `passages.jsonl.gz` by their id. Raises InputError as `records` does."""
    found = records(directory, "passages.jsonl.gz", id=int, title=str, text=str)
    return {record["id"]: Document(record["title"], record["text"]) for record in found}


@dataclass(frozen=True)
class NqMultidoc(DrawnTask):
    """The gold passage at a depth among the hardest distractors, then random passages that do not hold an answer.

    What is missing to the length asked for is less than one passage.
    Source: multi-document question answering of Lost in the Middle, arXiv:2307.03172, section 2, its closed prompt.
    Data: `nq_questions.jsonl.gz` (question, answers, gold_passage_id, distractor_ids, the hardest first) and
    `passages.jsonl.gz` (id, title, text).
    """

    data: str | Path
    name: str = "nq_multidoc"

    def make(self, draw: Draw) -> Example:
        passages = load_passages(self.data)
        fields = {"question": str, "answers": list, "gold_passage_id": int, "distractor_ids": list}
        record = draw.rng.choice(records(self.data, "nq_questions.jsonl.gz", _wrong, **fields))
        place = draw.place()
        asked = f"Question: {record['question']}\nAnswer:"
        references = tuple(str(answer) for answer in record["answers"])

        def build(context: str, depths: tuple[float, ...]) -> Example:
            return Example(
                f"{INSTRUCTION}\n\n{context}", asked, references[0], references[:1], depths, MAX_TOKENS, references
            )

        own = [record["gold_passage_id"], *record["distractor_ids"]]
        if unknown := [index for index in own if index not in passages]:
            raise InputError(f"passages.jsonl.gz has no passage {unknown[0]}, which {record['question']!r} names")
        gold, *hard = [passages[index] for index in own]
        others = self._others(random.Random(draw.rng.getrandbits(64)), set(own), hard, references)
        return fill_with_documents([gold], others, [place], build, draw)

    def score(self, example: Example, text: str) -> float:
        """1 if the text contains any of the answers, else 0."""
        return best(contains, text, example.references)

    def _others(
        self, rng: random.Random, own: set[int], hard: list[Document], references: tuple[str, ...]
    ) -> Iterator[Document]:
        yield from hard
        passages = load_passages(self.data)
        for index in rng.sample(list(passages), len(passages)):
            if index not in own and not best(contains, passages[index].text, references):
                yield passages[index]


def _wrong(record: Record) -> str:
    return "" if record["answers"] else "'answers' is empty"
