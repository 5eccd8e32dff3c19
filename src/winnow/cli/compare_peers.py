"""`winnow compare --peer`: plans and what people would use instead, side by side."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from winnow.cli.compare_plot import plot_peers
from winnow.cli.compare_view import show_peers
from winnow.cli.deliver import Record
from winnow.cli.terminal import collect, say
from winnow.errors import InputError
from winnow.evaluation.evaluate import Case, Progress
from winnow.evaluation.peers.base import Arm
from winnow.evaluation.peers.compare import Answer, Ended, Workers
from winnow.evaluation.peers.registry import parse_pythons, peer_arms, plan_arms
from winnow.evaluation.peers.summary import FULL, summarise_peers
from winnow.evaluation.peers.weights import weights_of
from winnow.models.packed import is_packed
from winnow.plan import Plan
from winnow.runtime.llm import LLM

ERROR = 2  # exit code where an arm has ended


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
    llm: LLM, plans: Sequence[Plan], typed: Typed, cases: Sequence[Case], seed: int, weights: str, about: dict[str, Any]
) -> Record:
    """Answer `cases` with every arm; failed where an arm has ended, and Ctrl-C keeps what was finished.

    weights: how Winnow holds them, as in `LLM`.
    """
    own, peers = plan_arms(plans, llm.prefill_chunk, weights), typed.arms(llm)
    arms = [*own, *peers]
    first = {(case.task, case.length): case for case in reversed(cases)}
    for plan in plans:
        for case in first.values():
            llm.check([case.ids], case.params, plan=plan)
    context = max(len(case.ids) + case.example.max_tokens for case in cases)
    tokens, wanted = sum(len(case.ids) for case in cases) * len(arms), len(cases) * len(arms)
    with (
        weights_of(llm, arms, say) as files,
        Workers(arms, threads=torch.get_num_threads(), device=str(llm.device)) as workers,
    ):

        def ask(progress: Progress) -> Iterator[Answer | Ended]:
            workers.load(files, context)
            yield from workers.answer(llm, cases, seed, progress)

        told = collect("comparing", tokens, f"{wanted} answers", ask)
        said = workers.about
    answers = [each for each in told if isinstance(each, Answer)]
    ended = [each for each in told if isinstance(each, Ended)]
    for each in ended:
        say(f"error: {each.arm} was left out after {each.answers} answers: {each.reason}")
    beside = [FULL, peers[0].label]
    rows = summarise_peers(answers, [arm.label for arm in arms], beside)
    figures = {
        "arms": [{"arm": arm.label, **said[arm.label]} for arm in arms],
        "ended": [each.to_dict() for each in ended],
        "summary": [row.to_dict() for row in rows],
        "records": [answer.to_dict() for answer in answers],
    }
    shown = partial(show_peers, rows, answers, about["model"], beside)
    draw = partial(plot_peers, rows=rows) if rows else None
    return Record("compare", figures, shown, draw, len(answers) == wanted, about, ERROR if ended else 0)
