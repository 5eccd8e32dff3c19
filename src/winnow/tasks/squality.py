"""SQuALITY: questions about a short story, each with four summaries as references."""

from collections.abc import Sequence
from dataclasses import dataclass

from winnow.tasks.example import Example
from winnow.tasks.long_document import BEGIN, END, DocumentTask
from winnow.tasks.metrics import best, rouge_l
from winnow.tasks.sources import Record, each_has, records

_WRONG = each_has("questions", question=str, references=list)


@dataclass(frozen=True)
class Squality(DocumentTask):
    """A question about a whole story; the score is the best ROUGE-L with any of its references.

    A story longer than the length asked for loses its middle.
    Source: SQuALITY, arXiv:2205.11465, section 5, which takes the best of the references too.
    Data: `squality.jsonl.gz` (document, questions [{question, references}]).
    """

    name: str = "squality"

    prompt = (
        f'Answer the question about the story between "{BEGIN}" and "{END}" in a paragraph.\n\nQuestion: {{}}\nAnswer:'
    )
    max_tokens = 512

    def load(self) -> Sequence[Record]:
        return records(self.data, "squality.jsonl.gz", _WRONG, document=str, questions=list)

    def asked(self, record: Record) -> list[tuple[str, list[str]]]:
        return [(each["question"], each["references"]) for each in record["questions"]]

    def score(self, example: Example, text: str) -> float:
        """The best ROUGE-L with any of the references."""
        return best(rouge_l, text, example.references)
