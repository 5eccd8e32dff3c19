"""Many-shot classification: messages to a bank and their intents, then one message to be classified."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from winnow.errors import InputError
from winnow.tasks.draw import Draw, DrawnTask
from winnow.tasks.example import Example
from winnow.tasks.metrics import best
from winnow.tasks.shots import fill_with_shots
from winnow.tasks.sources import records

INSTRUCTION = "Here are messages of customers to a bank, each with its intent. Give the intent of the last message."
INTENT = "Intent:"


@dataclass(frozen=True)
class Banking77(DrawnTask):
    """Shots of `banking77_train.jsonl.gz`, every intent once before any comes twice; a message of the test file.

    options: of how many intents the answer is one, by likelihood, with shots of these alone, as plain text that the
    answer goes on with; 0: of all of them, and the model has to name it. What is missing to the length asked for is
    less than one shot; a depth is ignored.
    Source: Banking77, arXiv:2003.04807, many-shot as in LongICLBench, arXiv:2404.02060.
    Data: `banking77_train.jsonl.gz` and `banking77_test.jsonl.gz` (text, label).
    """

    data: str | Path
    options: int = 0
    name: str = "banking77"

    def __post_init__(self) -> None:
        if self.options < 0 or self.options == 1:
            raise InputError(f"options={self.options} must be 0, or at least 2 to choose from")

    def make(self, draw: Draw) -> Example:
        train = records(self.data, "banking77_train.jsonl.gz", text=str, label=str)
        asked = draw.rng.choice(records(self.data, "banking77_test.jsonl.gz", text=str, label=str))
        by_label: dict[str, list[str]] = {}
        for record in draw.rng.sample(train, len(train)):
            by_label.setdefault(record["label"], []).append(_shot(record["text"], record["label"]))
        label: str = asked["label"]
        options: tuple[str, ...] = ()
        question = _shot(asked["text"], "").rstrip()
        if self.options:
            options = self._options(draw, sorted(by_label), label)
            by_label = {option: by_label.get(option, []) for option in options}
        rounds = itertools.zip_longest(*by_label.values())
        shots = [shot for each in rounds for shot in draw.rng.sample(each, len(each)) if shot is not None]
        limit = max(map(draw.allow, by_label))

        def build(context: str) -> Example:
            return Example(
                f"{INSTRUCTION}\n\n{context}",
                question,
                label,
                (),
                (),
                limit,
                (label,),
                chat=not options,
                options=options,
            )

        return fill_with_shots(shots, build, draw)

    def _options(self, draw: Draw, labels: Sequence[str], right: str) -> tuple[str, ...]:
        """The intents to choose from, in random order."""
        others = [label for label in labels if label != right]
        if len(others) < self.options - 1:
            raise InputError(f"options={self.options} are more than the {len(others) + 1} intents of the data")
        return tuple(draw.rng.sample([right, *draw.rng.sample(others, self.options - 1)], self.options))

    def score(self, example: Example, text: str) -> float:
        """1 if the first line of the text is the intent, blanks and case aside, else 0."""
        lines = text.strip().split("\n")
        return best(_same, lines[0].removeprefix(INTENT), example.references)


def _shot(text: str, label: str) -> str:
    return f"Message: {' '.join(text.split())}\n{INTENT} {label}"


def _same(text: str, reference: str) -> float:
    return float(text.lower().replace("_", " ").strip(" .") == reference.lower().replace("_", " "))
