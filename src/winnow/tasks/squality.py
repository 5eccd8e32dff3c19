"""SQuALITY: questions about a short story, each with four summaries as references."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from winnow.tasks.example import Example
from winnow.tasks.long_document import BEGIN, END, ask_about_document
from winnow.tasks.metrics import best, rouge_l
from winnow.tasks.sources import each_has, records

MAX_TOKENS = 512
QUESTION = (
    f'Answer the question about the story between "{BEGIN}" and "{END}" in a paragraph.\n\nQuestion: {{}}\nAnswer:'
)

_WRONG = each_has("questions", question=str, references=list)


@dataclass(frozen=True)
class Squality:
    """A question about a whole story; the score is the best ROUGE-L with any of its references.

    Source: SQuALITY, arXiv:2205.11465, section 5, which takes the best of the references too.
    Data: `squality.jsonl.gz` (document, questions [{question, references}]).
    """

    data: str | Path
    name: str = "squality"

    def example(
        self, rng: random.Random, *, tokens: int, tokenizer: PreTrainedTokenizerBase, depth: float | None = None
    ) -> Example:
        """One example; see `Task.example`. A story longer than `tokens` loses its middle."""
        every = records(self.data, "squality.jsonl.gz", _WRONG, document=str, questions=list)
        chosen = rng.randrange(len(every))
        document, asked = every[chosen]["document"], rng.choice(every[chosen]["questions"])
        return ask_about_document(
            document,
            [record["document"] for index, record in enumerate(every) if index != chosen] or [document],
            QUESTION.format(asked["question"]),
            tuple(asked["references"]),
            MAX_TOKENS,
            rng=rng,
            tokens=tokens,
            tokenizer=tokenizer,
            depth=depth,
        )

    def score(self, example: Example, text: str) -> float:
        """The best ROUGE-L with any of the references."""
        return best(rouge_l, text, example.references)
