"""COVID-QA: questions about one biomedical article; the answers are spans of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from winnow.tasks.example import Example
from winnow.tasks.long_document import BEGIN, END, DocumentTask
from winnow.tasks.metrics import best, qa_f1
from winnow.tasks.sources import Record, each_has, records

_ASKED = each_has("questions", question=str, answers=list)


def _wrong(record: Record) -> str:
    """What is wrong with a record: its questions, or an answer that is no span of the document."""
    if told := _ASKED(record):
        return told
    firsts = [asked["answers"][0] for asked in record["questions"]]
    missing = [answer for answer in firsts if not isinstance(answer, str) or answer not in record["document"]]
    return f"the answer {missing[0]!r:.60} is no part of the document" if missing else ""


@dataclass(frozen=True)
class CovidQA(DocumentTask):
    """A span question about one article among others of its kind; scored by F1.

    A short article stands at the depth asked for; a long one is cut around its answer.
    Source: COVID-QA, Moeller et al., NLP-COVID 2020, scored as SQuAD is.
    Data: `covid_qa.jsonl.gz` (document, questions [{question, answers}]).
    """

    name: str = "covid_qa"

    prompt = (
        f'Answer the question about the article between "{BEGIN}" and "{END}" in its own words, as briefly as you '
        "can.\n\n"
        "Question: {}\nAnswer:"
    )
    max_tokens = 64
    spans = True

    def load(self) -> Sequence[Record]:
        return records(self.data, "covid_qa.jsonl.gz", _wrong, document=str, questions=list)

    def asked(self, record: Record) -> list[tuple[str, list[str]]]:
        return [(each["question"], each["answers"]) for each in record["questions"]]

    def score(self, example: Example, text: str) -> float:
        """The best F1 over words with any of the answers."""
        return best(qa_f1, text, example.references)
