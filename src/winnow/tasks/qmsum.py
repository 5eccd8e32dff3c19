"""QMSum: queries about the transcript of a meeting, answered by a summary."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from winnow.tasks.example import Example
from winnow.tasks.long_document import BEGIN, END, ask_about_document
from winnow.tasks.metrics import best, rouge_l
from winnow.tasks.sources import Record, each_has, records

MAX_TOKENS = 512
QUESTION = (
    f'Answer the query about the meeting between "{BEGIN}" and "{END}" in one or more sentences.\n\n'
    "Query: {}\nAnswer:"
)

_SPECIFIC, _GENERAL = (each_has(name, question=str, answer=str) for name in ("specific", "general"))


def _wrong(record: Record) -> str:
    return _SPECIFIC(record) or (_GENERAL(record) if record["general"] else "")


@dataclass(frozen=True)
class QMSum:
    """A general or specific query about a meeting, scored by ROUGE-L.

    Source: QMSum, arXiv:2104.05938, section 5.
    Data: `qmsum_val.jsonl.gz` (document, general [{question, answer}], specific [{question, answer}]).
    """

    data: str | Path
    name: str = "qmsum"

    def example(
        self, rng: random.Random, *, tokens: int, tokenizer: PreTrainedTokenizerBase, depth: float | None = None
    ) -> Example:
        """One example; see `Task.example`. A transcript longer than `tokens` loses its middle."""
        every = records(self.data, "qmsum_val.jsonl.gz", _wrong, document=str, general=list, specific=list)
        chosen = rng.randrange(len(every))
        record = every[chosen]
        asked = rng.choice([*record["general"], *record["specific"]])
        return ask_about_document(
            record["document"],
            [other["document"] for index, other in enumerate(every) if index != chosen] or [record["document"]],
            QUESTION.format(asked["question"]),
            (asked["answer"],),
            MAX_TOKENS,
            rng=rng,
            tokens=tokens,
            tokenizer=tokenizer,
            depth=depth,
        )

    def score(self, example: Example, text: str) -> float:
        """ROUGE-L with the reference."""
        return best(rouge_l, text, example.references)
