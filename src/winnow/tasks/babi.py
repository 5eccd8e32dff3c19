"""Facts of a bAbI story hidden in a book, and the question about them."""

from dataclasses import dataclass
from pathlib import Path

from winnow.errors import InputError
from winnow.tasks.draw import Draw, DrawnTask
from winnow.tasks.example import Example
from winnow.tasks.fill import Needle, fill_with_text
from winnow.tasks.haystack import Haystack
from winnow.tasks.metrics import best, normalise
from winnow.tasks.sources import Record, records

MAX_TOKENS = 16
INSTRUCTION = (
    "Facts about some persons and things are hidden in the following text. "
    "At the end is a question that they answer; nothing else in the text matters."
)


@dataclass(frozen=True)
class Babi(DrawnTask):
    """The facts in their order between the sentences of a book, at drawn places.

    The last fact that supports the answer stands at `depth`.
    Source: BABILong, arXiv:2406.10149, section 2, with an instruction of our own and without its worked examples.
    Data: `babi_test_a.jsonl.gz` (task, question, answer, facts, supporting: indices of facts).
    """

    data: str | Path
    tasks: tuple[str, ...] = ("qa1", "qa2", "qa3", "qa4", "qa5")  # the five that BABILong's tables show
    haystack: Haystack | str | Path | None = None  # the bundled books, or a directory of texts
    name: str = "babi"

    def make(self, draw: Draw) -> Example:
        fields = {"task": str, "question": str, "answer": str, "facts": list, "supporting": list}
        every = [r for r in records(self.data, "babi_test_a.jsonl.gz", _wrong, **fields) if r["task"] in self.tasks]
        if not every:
            raise InputError(f"babi_test_a.jsonl.gz holds no record of the tasks {', '.join(self.tasks)}")
        record = draw.rng.choice(every)
        facts, key, place = record["facts"], max(record["supporting"]), draw.place()
        before = sorted(draw.rng.uniform(0, place) for _ in facts[:key])
        after = sorted(draw.rng.uniform(place, 1) for _ in facts[key + 1 :])
        hidden = [Needle(fact, at) for fact, at in zip(facts, [*before, place, *after], strict=True)]
        question = f"Question: {record['question']} Answer with one or a few words.\nAnswer:"
        answer = record["answer"]

        def build(context: str, depths: tuple[float, ...]) -> Example:
            found = depths[key : key + 1]
            return Example(f"{INSTRUCTION}\n\n{context}", question, answer, (answer,), found, MAX_TOKENS, (answer,))

        return fill_with_text(build, hidden, self.haystack, draw)

    def score(self, example: Example, text: str) -> float:
        """1 if the words of the answer stand in the first sentence of the text, else 0."""
        first = text.strip().split("\n")[0].split(".")[0]
        return best(_has_words, first, example.references)


def _wrong(record: Record) -> str:
    known = range(len(record["facts"]))
    right = record["supporting"] and all(index in known for index in record["supporting"])
    return "" if right else f"'supporting' must be indices of the {len(known)} facts, not {record['supporting']!r:.60}"


def _has_words(text: str, reference: str) -> float:
    return float(f" {normalise(reference)} " in f" {normalise(text)} ")
