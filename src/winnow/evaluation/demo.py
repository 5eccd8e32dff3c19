"""The demo: short questions about one long document, under full attention and under plans, side by side."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from winnow.engine.request import Completion, Request
from winnow.engine.session import Session
from winnow.evaluation.compare import Row, distinct, summarise, with_full
from winnow.evaluation.evaluate import Case, Progress, Record, record_of, silent
from winnow.evaluation.fidelity import Fidelity, distance, log_probs_along
from winnow.models.files import asset
from winnow.plan import Plan
from winnow.runtime.llm import LLM
from winnow.sampling import SamplingParams
from winnow.tasks import Example, render

ANSWER_TOKENS = 24
WARM = 256  # tokens that every plan reads before it is timed
TASK = "demo"


@dataclass(frozen=True)
class Question:
    """What to ask about the document. accepted: an answer is right if any of them stands in it, in any case."""

    question: str
    accepted: tuple[str, ...]


@dataclass(frozen=True)
class Asked:
    """One question answered under every plan, full attention first: answers, and distances from full attention.

    fidelities: along the tokens of full attention's answer, for every plan but `full`.
    """

    case: Case
    records: tuple[Record, ...]
    fidelities: tuple[Fidelity, ...]

    def to_dict(self) -> dict[str, Any]:
        accepted, answers = self.case.example.references, [record.to_dict() for record in self.records]
        question = {"question": self.case.example.question, "accepted": accepted}
        return {**question, "answers": answers, "fidelity": [each.to_dict() for each in self.fidelities]}


@dataclass(frozen=True)
class Standing:
    """One plan over all questions.

    cost: medians of the times, the most bytes, and their ratios to full attention's. right: answers that hold an
    accepted one; same: that are full attention's, token for token. kl: mean KL(full || plan) of the next token in nats,
    top1: share of places where both find the same token likeliest, both over every token of full attention's answers;
    None for full attention itself.
    """

    plan: str
    questions: int
    right: int
    same: int
    kl: float | None
    top1: float | None
    cost: Row

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def document() -> str:
    """The document that ships with the package: a public-domain text of some 4,000 tokens."""
    return asset("demo").joinpath("document.txt").read_text(encoding="utf-8").rstrip("\n")


def questions() -> list[Question]:
    """The questions about `document`, in the order of the places that answer them."""
    listed = json.loads(asset("demo").joinpath("questions.json").read_text(encoding="utf-8"))
    return [Question(each["question"], tuple(each["accepted"])) for each in listed]


def demo_cases(llm: LLM, text: str, asked: Sequence[Question]) -> list[Case]:
    """A prompt per question, as `winnow run --file --question` builds it. The model must have a tokenizer."""
    assert llm.tokenizer is not None
    examples = [Example(text, each.question, "", (), (), ANSWER_TOKENS, references=each.accepted) for each in asked]
    prompts = [render(example, llm.tokenizer) for example in examples]
    longest = max(map(len, prompts))
    return [
        Case(TASK, longest, index, None, example, ids, _score)
        for index, (example, ids) in enumerate(zip(examples, prompts, strict=True))
    ]


def demo(
    llm: LLM, plans: Sequence[str | Plan], cases: Sequence[Case], *, progress: Progress = silent
) -> Iterator[Asked]:
    """Put every case to full attention and to `plans`, a different plan first each time; yields a case when it is done.

    No plan profits from the document being the same: every prompt is computed from its first token. The first
    tokens under every plan come before, unmeasured. progress: called with the number of prompt tokens just processed.
    Raises, before any work: InputError, CapacityError, PlanError where a plan or a prompt cannot be run.
    """
    chosen = with_full(plans)
    requests = [[llm.check([case.ids], case.params, plan=plan)[0] for plan in chosen] for case in cases]
    return _demo(llm, chosen, cases, requests, progress)


def _demo(
    llm: LLM, plans: list[Plan], cases: Sequence[Case], requests: list[list[Request]], progress: Progress
) -> Iterator[Asked]:
    for plan in plans:
        llm.generate([cases[0].ids[:WARM]], SamplingParams(max_tokens=2, ignore_eos=True), plan=plan)
    for turn, (case, asked) in enumerate(zip(cases, requests, strict=True)):
        shift = turn % len(plans)
        ended = {request.plan: _branch(llm, request, progress) for request in [*asked[shift:], *asked[:shift]]}
        records = tuple(record_of(case, plan, ended[plan][0]) for plan in plans)
        answer = ended[plans[0]][0].token_ids
        expected, *others = (log_probs_along(ended[plan][1], answer) for plan in plans)
        rows = list(expected)
        found = zip(plans[1:], others, strict=True)
        yield Asked(case, records, tuple(distance(plan, len(case.ids), answer, rows, other) for plan, other in found))


def _branch(llm: LLM, request: Request, progress: Progress) -> tuple[Completion, Session]:
    """A prompt's answer, timed as `LLM.generate` times it, and the state before its first token, to feed another to.

    Copying the state is in no time of the answer's stats; it doubles the memory held.
    """
    session = llm.session(plan=request.plan, max_tokens=request.params.max_tokens)
    session.feed(request.ids, progress=progress)
    twin = session.fork()
    return session.generate(request), twin


def standings(asked: Sequence[Asked]) -> list[Standing]:
    """A Standing per plan, full attention first; at least one question must have been asked."""
    records = [record for each in asked for record in each.records]
    costs, full = {row.plan: row for row in summarise(records)}, [each.records[0] for each in asked]
    return [
        _standing(
            costs[plan],
            [record for record in records if record.plan == plan],
            full,
            [found for each in asked for found in each.fidelities if found.plan == plan],
        )
        for plan in distinct(records, lambda record: record.plan)
    ]


def _standing(cost: Row, mine: list[Record], full: list[Record], found: list[Fidelity]) -> Standing:
    tokens = sum(each.tokens for each in found)
    return Standing(
        plan=cost.plan,
        questions=len(mine),
        right=sum(record.score == 1 for record in mine),
        same=sum(record.token_ids == other.token_ids for record, other in zip(mine, full, strict=True)),
        kl=sum(each.kl * each.tokens for each in found) / tokens if tokens else None,
        top1=sum(each.top1 * each.tokens for each in found) / tokens if tokens else None,
        cost=cost,
    )


def _score(example: Example, text: str) -> float:
    return float(any(_stands_in(accepted, text) for accepted in example.references))


def _stands_in(accepted: str, text: str) -> bool:
    """Whether an answer holds these words, in any case, and not as a part of a longer word or number."""
    return re.search(rf"(?<![^\W_]){re.escape(accepted)}(?![^\W_]|,\d)", text, re.IGNORECASE) is not None
