"""Plans and peers on the same prompts: every arm in a process of its own, one computing at a time."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from winnow.evaluation.evaluate import Answered, Case, Progress, silent
from winnow.evaluation.peers.base import Arm
from winnow.evaluation.peers.process import PeerEnded, Worker
from winnow.evaluation.peers.weights import Weights
from winnow.runtime.llm import LLM


@dataclass(frozen=True)
class Answer(Answered):
    """One example answered by one arm.

    total_s: from the start of the prompt to the last token. cache_bytes, kept_units: held at the end, the latter summed
    over layers and KV heads, None where the arm does not tell. peak_bytes: the most resident memory of the arm's
    process, weights and libraries included, since the start of this prompt; None where the system does not tell.
    """

    arm: str
    prompt_tokens: int
    ttft_s: float
    total_s: float
    cache_bytes: int
    kept_units: int | None
    peak_bytes: int | None

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first, where there is one."""
        return (self.total_s - self.ttft_s) / (len(self.token_ids) - 1) if len(self.token_ids) > 1 else None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "tpot_s": self.tpot_s}


@dataclass(frozen=True)
class Ended:
    """An arm that gave out in the middle: how many answers it had given, and why there are no more."""

    arm: str
    answers: int
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Workers:
    """The processes of all arms, checked; a context that ends them.

    Raises InputError, MissingExtraError or CapacityError where one cannot do what is asked of it; about: what each said
    of itself, by arm.
    """

    def __init__(self, arms: Sequence[Arm], *, threads: int, device: str) -> None:
        self.about: dict[str, dict[str, str]] = {}
        self._workers: dict[str, Worker] = {}
        self._stack = ExitStack()
        try:
            for arm in arms:
                worker = self._workers[arm.label] = self._stack.enter_context(Worker(arm, threads=threads))
                self.about[arm.label] = worker.require("check", threads=threads, device=device, **arm.options)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *ended: object) -> None:
        self._stack.close()

    def load(self, weights: Weights, context: int) -> None:
        """Let every arm load the weights, with room for `context` tokens."""
        for worker in self._workers.values():
            worker.require("load", model=weights.of(worker.arm), dtype=weights.dtype, context=context)

    def require(self, label: str, what: str, **request: Any) -> dict[str, Any]:
        """What one arm answers; see `workers/wire.py` for what it can be asked."""
        return self._workers[label].require(what, **request)

    def answer(
        self, llm: LLM, cases: Sequence[Case], seed: int = 0, progress: Progress = silent
    ) -> Iterator[Answer | Ended]:
        """Answer each case with every arm, another one first each time, after a short run of each that is not counted.

        An arm that gives out is named in an Ended and left out from then on. progress: called with the number of prompt
        tokens just processed.
        """
        stop, going = sorted(llm.end_tokens()), list(self._workers)
        given = dict.fromkeys(going, 0)
        for turn, case in enumerate(cases):
            shift = turn % len(self._workers)
            labels = list(self._workers)
            for label in [each for each in [*labels[shift:], *labels[:shift]] if each in going]:
                worker = self._workers[label]
                try:
                    if given[label] == 0:
                        worker.ask("answer", ids=case.ids, max_tokens=min(2, case.example.max_tokens), stop=[])
                    told = worker.ask("answer", ids=case.ids, max_tokens=case.example.max_tokens, stop=stop)
                except PeerEnded as ended:
                    going.remove(label)
                    yield Ended(label, given[label], str(ended))
                else:
                    given[label] += 1
                    yield _answer(llm, label, case, seed, stop, told)
                progress(len(case.ids))


def _answer(llm: LLM, arm: str, case: Case, seed: int, stop: Sequence[int], told: dict[str, Any]) -> Answer:
    ids = told.pop("token_ids")
    said = ids[:-1] if ids[-1] in stop else ids
    text = "" if llm.tokenizer is None else str(llm.tokenizer.decode(said, skip_special_tokens=True))
    return Answer(
        **case.answered(text, seed),
        arm=arm,
        token_ids=tuple(ids),
        prompt_tokens=len(case.ids),
        **told,
    )
