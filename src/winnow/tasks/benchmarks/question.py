"""What a published benchmark asks: its prompts as published, how answers are scored, and what of a prompt fits."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TypeVar

from transformers import PreTrainedTokenizerBase

from winnow.errors import CapacityError
from winnow.tasks.example import render_text

Right = TypeVar("Right")


@dataclass(frozen=True)
class Dataset:
    """One dataset of a benchmark: the name of its metric, the longest answer in tokens, its prompt template."""

    metric: str
    max_tokens: int
    prompt: str


@dataclass(frozen=True)
class Question:
    """One prompt of a dataset.

    asked: the part of the prompt that is its question. references: the right answers, as text to be shown.
    chat: whether the prompt goes into the model's chat template, where it has one. score: of an answer, 0 .. 1.
    """

    dataset: str
    prompt: str
    asked: str
    references: tuple[str, ...]
    max_tokens: int
    chat: bool
    score: Callable[[str], float]


@dataclass(frozen=True)
class Benchmark:
    """A benchmark in its published files, `NAME.jsonl` or `NAME.jsonl.gz` for each of its datasets.

    load: the questions of one file, which raises InputError with file and line where a record is malformed.
    """

    name: str
    datasets: dict[str, Dataset]
    load: Callable[[Path, str, Dataset], list[Question]]


def published(name: str) -> dict[str, Dataset]:
    """The datasets of the benchmark called `name`, from the table of its published prompts."""
    text = resources.files(__package__).joinpath(f"{name}.json").read_text(encoding="utf-8")
    return {dataset: Dataset(**entry) for dataset, entry in json.loads(text).items()}


def against(metric: Callable[[str, Right], float], right: Right) -> Callable[[str], float]:
    """How good an answer is by a metric, whose right answer is known."""
    return lambda text: metric(text, right)


def fit(question: Question, tokenizer: PreTrainedTokenizerBase, limit: int) -> tuple[list[int], int]:
    """Token ids of the prompt, cut in its middle to at most `limit`, and how many there were before.

    Source: LongBench, arXiv:2308.14508, section 4.1: a prompt that is too long keeps as many tokens of its start as of
    its end, counted before it goes into the chat template. A little more is cut where the template needs the room.
    Raises:
        CapacityError: `limit` leaves no room for even a few tokens.
    """
    ids = _rendered(question, question.prompt, tokenizer)
    before = len(ids)
    plain = tokenizer(question.prompt, add_special_tokens=False, verbose=False)["input_ids"]
    kept = min(limit, len(plain))
    while len(ids) > limit:
        half = kept // 2
        if half < 1:
            raise CapacityError(f"{question.dataset}: {limit} prompt tokens leave no room for a question; allow more")
        text = f"{tokenizer.decode(plain[:half])}{tokenizer.decode(plain[-half:])}"
        ids = _rendered(question, text, tokenizer)
        kept -= max(2, len(ids) - limit)
    return ids, before


def _rendered(question: Question, text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return render_text(text, tokenizer) if question.chat else list(tokenizer(text, verbose=False)["input_ids"])
