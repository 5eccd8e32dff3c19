"""HotpotQA: questions that need two Wikipedia paragraphs, among the question's distractors and those of others."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from winnow.tasks.documents import Document, fill_with_documents
from winnow.tasks.draw import Draw, DrawnTask
from winnow.tasks.example import Example
from winnow.tasks.metrics import best, qa_f1
from winnow.tasks.sources import Record, each_has, records

MAX_TOKENS = 32  # of LongBench's HotpotQA
INSTRUCTION = (
    "Answer the question based on the given passages. Only give me the answer and do not output any other words."
)


@dataclass(frozen=True)
class HotpotQA(DrawnTask):
    """The paragraphs with the supporting facts at drawn places among others; scored by F1.

    What is missing to the length asked for is less than a paragraph; a depth is ignored.
    Source: HotpotQA, arXiv:1809.09600, its distractor setting, lengthened with the paragraphs of other questions; the
    prompt is that of LongBench, arXiv:2308.14508.
    Data: `hotpotqa_100.jsonl.gz` (question, answer, supporting_facts [[title, sentence]], documents [{title, text}]).
    """

    data: str | Path
    name: str = "hotpotqa"

    def make(self, draw: Draw) -> Example:
        fields = {"question": str, "answer": str, "supporting_facts": list, "documents": list}
        every = records(self.data, "hotpotqa_100.jsonl.gz", _wrong, **fields)
        record = draw.rng.choice(every)
        supporting, own = _supporting(record), _documents(record)
        gold = [document for document in own if document.title in supporting]
        hard = [document for document in own if document.title not in supporting]
        padding = random.Random(draw.rng.getrandbits(64))
        asked = f"{INSTRUCTION}\n\nQuestion: {record['question']}\nAnswer:"

        def others() -> Iterator[Document]:
            yield from hard
            seen = {document.title for document in own}
            for other in padding.sample(every, len(every)):
                for document in _documents(other):
                    if document.title not in seen:
                        seen.add(document.title)
                        yield document

        def build(context: str, depths: tuple[float, ...]) -> Example:
            passages = f"{INSTRUCTION}\n\nThe following are given passages.\n{context}"
            return Example(passages, asked, record["answer"], (), (), MAX_TOKENS, (record["answer"],))

        return fill_with_documents(gold, others(), [draw.rng.random() for _ in gold], build, draw)

    def score(self, example: Example, text: str) -> float:
        """F1 over words with the answer."""
        return best(qa_f1, text, example.references)


_DOCUMENTS = each_has("documents", title=str, text=str)


def _wrong(record: Record) -> str:
    """What is wrong with a record: its documents, or supporting facts of none of them."""
    if told := _DOCUMENTS(record):
        return told
    if not all(isinstance(fact, list) and len(fact) == 2 for fact in record["supporting_facts"]):
        return "'supporting_facts' must be a list of [title, sentence]"
    titles = {document["title"] for document in record["documents"]}
    return "" if titles & _supporting(record) else "'supporting_facts' name none of the documents"


def _supporting(record: Record) -> set[str]:
    return {title for title, _ in record["supporting_facts"]}


def _documents(record: Record) -> list[Document]:
    return [Document(each["title"], each["text"]) for each in record["documents"]]
