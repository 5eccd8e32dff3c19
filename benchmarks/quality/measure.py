"""A run: every arm on every window of text and every question, recorded as it comes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.quality.arms import FULL, Arm
from benchmarks.quality.ask import replies, spent
from benchmarks.quality.records import Journal, Record, key_of
from benchmarks.windows import Window
from winnow import LLM, Plan
from winnow.errors import WinnowError
from winnow.evaluation.evaluate import Case, Progress, silent
from winnow.evaluation.fidelity import check_fidelity, fidelities

Todo = list[tuple[Arm, Plan]]
Check = Callable[[LLM, Plan], None]
FIGURES = ("tokens", "kl", "top1", "nll_full", "nll_plan")  # of a window


@dataclass(frozen=True)
class Adapted:
    """The model with an adapter, and the SHA-256 of the adapter's weights."""

    llm: LLM
    sha256: str


@dataclass(frozen=True)
class Bench:
    """A model, where its records go, and the arms that it is measured with, full attention's first.

    adapted: by the adapters that arms have; all arms are compared with the model without.
    """

    llm: LLM
    journal: Journal
    arms: Sequence[Arm]
    adapted: Mapping[str, Adapted] = field(default_factory=dict)

    def answer(self, cases: Iterable[Case], *, progress: Progress = silent) -> Iterator[Record]:
        """Answer the questions that are not answered yet; yields every record once it is written.

        All arms of a question are answered before the next one; of a question that some have answered, full attention
        answers again, unrecorded, so that the others find what it computes.
        """
        for case in cases:
            place = {"task": case.task, "length": case.length, "index": case.index}
            if todo := self._todo("answer", place):
                of = case.example
                asked = {"question": of.question, "answers": [*(of.answers or of.references)]}
                for llm, some in self._by_model(todo):
                    found = replies(llm, case, [plan for _, plan in some], progress=progress)
                    for (arm, plan), reply in zip(some, found, strict=True):
                        yield from self._record(arm, plan, "answer", place, **asked, **reply.to_dict())

    def follow(self, windows: Iterable[Window], prompt: int, *, progress: Progress = silent) -> Iterator[Record]:
        """Prefill the first `prompt` tokens of each window, feed the others, and compare with full attention."""
        for window in windows:
            place = {"domain": window.domain, "length": prompt, "index": window.index}
            if todo := self._todo("window", place):
                expected: list[Tensor] = []  # by the model as it is, under full attention, which comes first
                for llm, some in self._by_model(todo):
                    plans = [plan for _, plan in some]
                    found = fidelities(llm, window.ids, plans, prompt, expected, progress=progress)
                    for (arm, plan), (fidelity, stats) in zip(some, found, strict=True):
                        figures = {name: getattr(fidelity, name) for name in FIGURES}
                        told = {"text": window.text, **figures, "costs": spent(stats)}
                        yield from self._record(arm, plan, "window", place, **told)

    def refuse(self, length: int, check: Check) -> Iterator[Record]:
        """Record the arms that the model cannot run after prompts of `length` tokens; they are left out there."""
        for arm in self.arms:
            plan, place = arm.plan(length), {"length": length}
            if key_of(_named(arm, plan, "refused", place)) not in self.journal:
                try:
                    check(self._model(arm), plan)
                except WinnowError as error:
                    if arm.name == FULL:
                        raise
                    yield from self._record(arm, plan, "refused", place, reason=str(error))

    def _model(self, arm: Arm) -> LLM:
        return self.llm if arm.adapter is None else self.adapted[arm.adapter].llm

    def _by_model(self, todo: Todo) -> Iterator[tuple[LLM, Todo]]:
        """The model as it is first, since full attention is."""
        for _, some in groupby(sorted(todo, key=lambda each: each[0].adapter or ""), lambda each: each[0].adapter):
            group = list(some)
            yield self._model(group[0][0]), group

    def _todo(self, kind: str, place: Record) -> Todo:
        """Full attention, then the arms that have no record there yet; nothing where all have one."""
        length = {"length": place["length"]}
        plans = [(arm, arm.plan(place["length"])) for arm in self.arms]
        able = [each for each in plans if key_of(_named(*each, "refused", length)) not in self.journal]
        missing = [each for each in able if key_of(_named(*each, kind, place)) not in self.journal]
        return [able[0], *(each for each in missing if each != able[0])] if missing else []

    def _record(self, arm: Arm, plan: Plan, kind: str, place: Record, **told: Any) -> Iterator[Record]:
        """Append it, unless it is full attention's, which was there already."""
        if arm.adapter is not None:
            told = {"adapter": Path(arm.adapter).name, "adapter_sha256": self.adapted[arm.adapter].sha256, **told}
        record = {**_named(arm, plan, kind, place), **told}
        if key_of(record) not in self.journal:
            self.journal.append(record)
            yield record


def _named(arm: Arm, plan: Plan, kind: str, place: Record) -> Record:
    return {"kind": kind, "arm": arm.name, "plan": str(plan), **place}


def check_all(case: Case | None, window: Window | None, prompt: int) -> Check:
    """What raises where a model cannot answer the question under a plan, or follow the window."""

    def check(llm: LLM, plan: Plan) -> None:
        if case is not None:
            llm.check([case.ids], case.params, plan=plan)
        if window is not None:
            check_fidelity(llm, window.ids, [plan], prompt)

    return check
