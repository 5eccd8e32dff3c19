"""COVID-QA: questions about one biomedical article; the answers are spans of it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from winnow.tasks.example import Example
from winnow.tasks.long_document import BEGIN, END, ask_about_document
from winnow.tasks.metrics import best, qa_f1
from winnow.tasks.sources import Record, each_has, records

MAX_TOKENS = 64
QUESTION = (
    f'Answer the question about the article between "{BEGIN}" and "{END}" in its own words, as briefly as you can.\n\n'
    "Question: {}\nAnswer:"
)

_ASKED = each_has("questions", question=str, answers=list)


def _wrong(record: Record) -> str:
    """What is wrong with a record: its questions, or an answer that is no span of the document."""
    if told := _ASKED(record):
        return told
    firsts = [asked["answers"][0] for asked in record["questions"]]
    missing = [answer for answer in firsts if not isinstance(answer, str) or answer not in record["document"]]
    return f"the answer {missing[0]!r:.60} is no part of the document" if missing else ""


@dataclass(frozen=True)
class CovidQA:
    """A span question about one article among others of its kind; scored by F1.

    Source: COVID-QA, Moeller et al., NLP-COVID 2020, scored as SQuAD is.
    Data: `covid_qa.jsonl.gz` (document, questions [{question, answers}]).
    """

    data: str | Path
    name: str = "covid_qa"

    def example(
        self, rng: random.Random, *, tokens: int, tokenizer: PreTrainedTokenizerBase, depth: float | None = None
    ) -> Example:
        """One example; see `Task.example`. A short article stands at `depth`; a long one is cut around its answer."""
        every = records(self.data, "covid_qa.jsonl.gz", _wrong, document=str, questions=list)
        chosen = rng.randrange(len(every))
        document, asked = every[chosen]["document"], rng.choice(every[chosen]["questions"])
        references = tuple(asked["answers"])
        start = document.index(references[0])
        return ask_about_document(
            document,
            [record["document"] for index, record in enumerate(every) if index != chosen] or [document],
            QUESTION.format(asked["question"]),
            references,
            MAX_TOKENS,
            span=(start, start + len(references[0])),
            rng=rng,
            tokens=tokens,
            tokenizer=tokenizer,
            depth=depth,
        )

    def score(self, example: Example, text: str) -> float:
        """The best F1 over words with any of the answers."""
        return best(qa_f1, text, example.references)
