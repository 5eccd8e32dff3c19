"""Many-shot arithmetic: worked solutions of GSM8K, then one more problem."""

import re
from dataclasses import dataclass
from pathlib import Path

from winnow.errors import InputError
from winnow.tasks.draw import Draw, DrawnTask
from winnow.tasks.example import Example
from winnow.tasks.shots import fill_with_shots
from winnow.tasks.sources import records

MAX_TOKENS = 256
_FINAL = re.compile(r"#### *(-?[\d.,]+)")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_CALCULATOR = re.compile(r"<<.*?>>")  # annotations for a calculator, which the model does not have


@dataclass(frozen=True)
class Gsm8k(DrawnTask):
    """Problems and solutions of `gsm8k_train.jsonl.gz`; a problem of `gsm8k_test_a.jsonl.gz`.

    What is missing to the length asked for is less than one shot; a depth is ignored.
    Source: GSM8K, arXiv:2110.14168; each solution ends with "#### " and the result.
    Data: both files (question, answer).
    """

    data: str | Path
    name: str = "gsm8k"

    def make(self, draw: Draw) -> Example:
        train = records(self.data, "gsm8k_train.jsonl.gz", question=str, answer=str)
        asked = draw.rng.choice(records(self.data, "gsm8k_test_a.jsonl.gz", question=str, answer=str))
        final = _FINAL.search(asked["answer"])
        if final is None:
            raise InputError(f"gsm8k: the answer {asked['answer'][-40:]!r} does not end with '#### ' and a number")
        result = _plain(final[1])
        shots = [_shot(record["question"], record["answer"]) for record in draw.rng.sample(train, len(train))]
        question, reply = _shot(asked["question"], "").rstrip(), _CALCULATOR.sub("", asked["answer"])

        def build(context: str) -> Example:
            return Example(context, question, reply, (), (), MAX_TOKENS, (result,))

        return fill_with_shots(shots, build, draw)

    def score(self, example: Example, text: str) -> float:
        """1 if the number after the first "####" is the result, or without one the last number; else 0.

        The text ends where the model goes on to a next question.
        """
        solution = text.split("Question:")[0]
        final = _FINAL.search(solution)
        numbers = [final[1]] if final else _NUMBER.findall(solution)[-1:]
        return float([_plain(number) for number in numbers] == list(example.references))


def _shot(question: str, answer: str) -> str:
    return f"Question: {question}\nAnswer: {_CALCULATOR.sub('', answer)}"


def _plain(number: str) -> str:
    """Without separators of thousands, a full stop at the end, and zeros after the point."""
    plain = number.replace(",", "").rstrip(".")
    return plain.rstrip("0").rstrip(".") if "." in plain else plain
