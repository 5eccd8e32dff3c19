"""Published benchmarks under plans: the answers to their questions, and a score per dataset."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from winnow.errors import CapacityError, InputError
from winnow.evaluation.evaluate import Case, Progress, Record, answer, silent
from winnow.plan import Plan
from winnow.runtime.llm import LLM
from winnow.tasks import Example
from winnow.tasks.benchmarks import Question, fit


@dataclass(frozen=True)
class DatasetScore:
    """The mean score, 0 .. 1, of one plan on one dataset, over `examples` questions; `cut` prompts were too long."""

    plan: str
    dataset: str
    examples: int
    cut: int
    score: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def evaluate_benchmark(
    llm: LLM,
    plans: Sequence[str | Plan],
    questions: Sequence[Question],
    *,
    length: int | None = None,
    progress: Progress = silent,
) -> Iterator[Record]:
    """Answer every question under every plan, greedily; yields a record per answer, whose `length` is before cutting.

    length: the most prompt tokens; longer prompts lose their middle. None: as many as the model's positions allow.
    Raises, before any work: InputError, CapacityError, PlanError where a question or plan cannot be run.
    """
    if llm.tokenizer is None:
        raise InputError("the model has no tokenizer, so no question can be put to it")
    chosen = [Plan.parse(plan) for plan in plans]
    for question in {question.dataset: question for question in questions}.values():
        case = _case(llm, question, 0, length)
        for plan in chosen:
            llm.check([case.ids], case.params, plan=plan)
    cases = (_case(llm, question, index, length) for index, question in enumerate(questions))
    return answer(llm, chosen, cases, progress=progress)


def dataset_scores(records: Sequence[Record]) -> list[DatasetScore]:
    """A DatasetScore per dataset and plan, in the order they first come up."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record.task, record.plan), []).append(record)
    return [_score(dataset, plan, group) for (dataset, plan), group in groups.items()]


def _score(dataset: str, plan: str, group: Sequence[Record]) -> DatasetScore:
    scores = [record.score for record in group if record.score is not None]
    cut = sum(record.length > record.stats.prompt_tokens for record in group)
    return DatasetScore(plan, dataset, len(scores), cut, sum(scores) / len(scores))


def _case(llm: LLM, question: Question, index: int, length: int | None) -> Case:
    assert llm.tokenizer is not None
    room = llm.decoder.shape.max_positions + 1 - question.max_tokens
    if room < 1:
        raise CapacityError(
            f"{question.dataset}: answers of {question.max_tokens} tokens need more than the model's "
            f"{llm.decoder.shape.max_positions} positions; leave it out"
        )
    ids, before = fit(question, llm.tokenizer, min(length or room, room))
    example = Example("", question.asked, "", (), (), question.max_tokens, question.references)
    return Case(question.dataset, before, index, None, example, ids, lambda _, text: question.score(text))
