"""`winnow compare --peer`: plans and what people would use instead, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from winnow.cli.compare_plot import plot_peers
from winnow.cli.compare_view import show_peers
from winnow.cli.deliver import Record
from winnow.cli.terminal import Meter, interruptible, say
from winnow.errors import InputError
from winnow.evaluation.evaluate import Case
from winnow.evaluation.peers.base import Arm
from winnow.evaluation.peers.compare import Answer, Ended, Workers
from winnow.evaluation.peers.registry import parse_pythons, peer_arms, plan_arms
from winnow.evaluation.peers.summary import FULL, PeerRow, summarise_peers
from winnow.evaluation.peers.weights import weights_of
from winnow.models.packed import is_packed
from winnow.plan import Plan
from winnow.runtime.llm import LLM

ERROR = 2  # exit code where an arm has ended


@dataclass
class PeerReport:
    """What a comparison has come to so far; about: what every arm's process said of itself."""

    arms: list[str]
    beside: list[str]
    about: dict[str, dict[str, str]]
    answers: list[Answer] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    complete: bool = False

    @property
    def rows(self) -> list[PeerRow]:
        return summarise_peers(self.answers, self.arms, self.beside)

    def to_dict(self) -> dict[str, Any]:
        return {
            "arms": [{"arm": arm, **self.about[arm]} for arm in self.arms],
            "ended": [each.to_dict() for each in self.ended],
            "summary": [row.to_dict() for row in self.rows],
            "records": [answer.to_dict() for answer in self.answers],
        }


@dataclass(frozen=True)
class Typed:
    """The peers as they were typed; what they stand for depends on the model."""

    peers: Sequence[str]
    pythons: Sequence[str]

    def arms(self, llm: LLM | None = None) -> list[Arm]:
        """Raises InputError. llm: None where none is loaded yet."""
        on_file = llm is not None and llm.source is not None
        return peer_arms(self.peers, parse_pythons(self.pythons), on_file=on_file)

    def check(self, device: str, threads: int | None) -> None:
        """Raise what is wrong with the peers, before a model is loaded."""
        with Workers(self.arms(), threads=threads or torch.get_num_threads(), device=device):
            pass


def refuse_adapter(llm: LLM, adapter: str | None) -> None:
    """Raise InputError where peers would lack the adapter: it is no part of a GGUF file, nor of packed weights."""
    if adapter is not None and (llm.source is not None or is_packed(llm.model)):
        raise InputError(f"--adapter {adapter} runs beside the weights here, so peers lack it; leave out one")


def compare_with_peers(
    llm: LLM, plans: Sequence[Plan], typed: Typed, cases: Sequence[Case], seed: int, weights: str = "auto"
) -> PeerReport:
    """Answer `cases` with every arm; Ctrl-C keeps what was finished. weights: how Winnow holds them, as in `LLM`."""
    own, peers = plan_arms(plans, llm.prefill_chunk, weights), typed.arms(llm)
    arms = [*own, *peers]
    first = {(case.task, case.length): case for case in reversed(cases)}
    for plan in plans:
        for case in first.values():
            llm.check([case.ids], case.params, plan=plan)
    context = max(len(case.ids) + case.example.max_tokens for case in cases)
    total = sum(len(case.ids) for case in cases) * len(arms)
    names = [arm.label for arm in arms]
    with (
        weights_of(llm, arms, say) as files,
        Workers(arms, threads=torch.get_num_threads(), device=str(llm.device)) as workers,
    ):
        report = PeerReport(names, [FULL, peers[0].label], workers.about)
        with Meter("comparing", total) as meter, interruptible():
            workers.load(files, context)
            for told in workers.answer(llm, cases, seed, meter.advance):
                if isinstance(told, Answer):
                    report.answers.append(told)
                else:
                    report.ended.append(told)
                meter.note(f"{len(report.answers)} of {len(cases) * len(arms)} answers")
            report.complete = not report.ended
    return report


def peer_record(report: PeerReport, about: dict[str, Any]) -> Record:
    """What the comparison has come to; failed where an arm has ended."""

    def show() -> None:
        show_peers(rows, report.answers, about["model"], report.beside)

    rows = report.rows
    for each in report.ended:
        say(f"error: {each.arm} was left out after {each.answers} answers: {each.reason}")
    draw = partial(plot_peers, rows=rows) if rows else None
    failed = ERROR if report.ended else 0
    return Record("compare", report.to_dict(), show, draw, report.complete, about, failed)
