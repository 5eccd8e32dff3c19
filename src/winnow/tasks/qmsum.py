"""QMSum: queries about the transcript of a meeting, answered by a summary."""

from collections.abc import Sequence
from dataclasses import dataclass

from winnow.tasks.example import Example
from winnow.tasks.long_document import BEGIN, END, DocumentTask
from winnow.tasks.metrics import best, rouge_l
from winnow.tasks.sources import Record, each_has, records

_SPECIFIC, _GENERAL = (each_has(name, question=str, answer=str) for name in ("specific", "general"))


def _wrong(record: Record) -> str:
    return _SPECIFIC(record) or (_GENERAL(record) if record["general"] else "")


@dataclass(frozen=True)
class QMSum(DocumentTask):
    """A general or specific query about a meeting, scored by ROUGE-L.

    A transcript longer than the length asked for loses its middle.
    Source: QMSum, arXiv:2104.05938, section 5.
    Data: `qmsum_val.jsonl.gz` (document, general [{question, answer}], specific [{question, answer}]).
    """

    name: str = "qmsum"

    prompt = (
        f'Answer the query about the meeting between "{BEGIN}" and "{END}" in one or more sentences.\n\n'
        "Query: {}\nAnswer:"
    )
    max_tokens = 512

    def load(self) -> Sequence[Record]:
        return records(self.data, "qmsum_val.jsonl.gz", _wrong, document=str, general=list, specific=list)

    def asked(self, record: Record) -> list[tuple[str, list[str]]]:
        return [(each["question"], [each["answer"]]) for each in (*record["general"], *record["specific"])]

    def score(self, example: Example, text: str) -> float:
        """ROUGE-L with the reference."""
        return best(rouge_l, text, example.references)
