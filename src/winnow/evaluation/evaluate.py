"""Run plans over seeded examples of retrieval tasks, and keep a record of every run."""

import platform
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import transformers

import winnow
from winnow.engine.request import Completion
from winnow.errors import CapacityError, InputError
from winnow.plan import Plan
from winnow.runtime.llm import LLM
from winnow.sampling import SamplingParams
from winnow.stats import Stats
from winnow.tasks import Example, Task, render
from winnow.tasks.example import found
from winnow.tasks.loops import loops

Depths = Sequence[float | None]
Progress = Callable[[int], None]


def silent(tokens: int) -> None:
    """No progress report."""


@dataclass(frozen=True)
class Case:
    """One question: the token ids of its prompt, and how its answer is scored (None: it has no known answer)."""

    task: str
    length: int
    index: int
    depth: float | None
    example: Example
    ids: list[int]
    score: Callable[[Example, str], float] | None

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(max_tokens=self.example.max_tokens)

    def answered(self, text: str, seed: int) -> dict[str, Any]:
        """What all records of an answer have, by name; seed: of the examples."""
        example = self.example
        return {
            **{name: getattr(self, name) for name in ("task", "length", "index", "depth")},
            "seed": seed,
            "question": example.question,
            "answers": example.answers,
            "text": text,
            "found": tuple(found(expected, text) for expected in example.answers),
            "score": self.score(example, text) if self.score else None,
        }


@dataclass(frozen=True)
class Answered:
    """One example that was answered.

    length: the prompt length asked for, in tokens. depth: the needle's place asked for (None: drawn). found: whether
    each answer stands in `text`. score: 0 .. 1, None where no answer is known.
    """

    task: str
    length: int
    index: int
    seed: int
    depth: float | None
    question: str
    answers: tuple[str, ...]
    found: tuple[bool, ...]
    text: str
    token_ids: tuple[int, ...]
    score: float | None


@dataclass(frozen=True)
class Record(Answered):
    """One example answered under one plan.

    depths: the true place of the needle of each answer. loops: whether it repeated itself up to its length limit. The
    true length of the prompt is `stats.prompt_tokens`.
    """

    plan: str
    depths: tuple[float, ...]
    finish_reason: str | None
    stats: Stats

    @property
    def loops(self) -> bool:
        return loops(self.token_ids, self.finish_reason)

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON; `stats` with the TPOT."""
        return {**asdict(self), "loops": self.loops, "stats": self.stats.to_dict()}


def evaluate(
    llm: LLM,
    plans: Sequence[str | Plan],
    tasks: Sequence[Task],
    lengths: Sequence[int],
    examples: int,
    *,
    seed: int = 0,
    depths: Depths = (None,),
    progress: Progress = silent,
) -> Iterator[Record]:
    """Answer `examples` examples of every task, length and depth under every plan; yields a record per answer.

    Every plan sees the same examples, and each example is answered under all plans before the next, a different plan
    first each time, so that noise and drift hit all plans alike. A short run of every plan comes before, unmeasured.
    progress: called with the number of prompt tokens just processed.
    Raises, before any work: InputError, CapacityError, PlanError where a task, length or plan cannot be run.
    """
    chosen = [Plan.parse(plan) for plan in plans]
    check_lengths(llm, chosen, lengths)
    first = [next(cases(llm, [task], [length], 1, seed=seed, depths=depths)) for length in lengths for task in tasks]
    for plan in chosen:
        for case in first:
            llm.check([case.ids], case.params, plan=plan)
    return answer(llm, chosen, cases(llm, tasks, lengths, examples, seed=seed, depths=depths), seed, progress)


def check_lengths(llm: LLM, plans: Sequence[str | Plan], lengths: Sequence[int]) -> None:
    """Raise CapacityError, before a text is made, where a prompt of such a length leaves no room under a plan."""
    for plan in plans:
        room = llm.room(1, plan)
        if room is not None and max(lengths) > room:
            raise CapacityError(
                f"prompts of {max(lengths)} tokens exceed the model's {llm.decoder.shape.max_positions} positions"
                f"; ask for at most {room}"
            )


def cases(
    llm: LLM, tasks: Sequence[Task], lengths: Sequence[int], examples: int, *, seed: int = 0, depths: Depths = (None,)
) -> Iterator[Case]:
    """The examples, each a function of (seed, task, length, depth, index) alone; tasks take turns."""
    if llm.tokenizer is None:
        raise InputError("the model has no tokenizer, so no task can be put to it")
    for length in lengths:
        for index in range(examples):
            for depth in depths:
                for task in tasks:
                    rng = random.Random(f"{seed} {task.name} {length} {depth} {index}")
                    example = task.example(rng, tokens=length, tokenizer=llm.tokenizer, depth=depth)
                    ids = render(example, llm.tokenizer)
                    yield Case(task.name, length, index, depth, example, ids, task.score)


def answer(
    llm: LLM, plans: Sequence[Plan], cases: Iterator[Case], seed: int = 0, progress: Progress = silent
) -> Iterator[Record]:
    """Answer each case under every plan, greedily; `evaluate` says in which order."""
    for turn, case in enumerate(cases):
        if turn == 0:
            for plan in plans:
                llm.generate([case.ids], SamplingParams(max_tokens=2, ignore_eos=True), plan=plan)
        shift = turn % len(plans)
        for plan in [*plans[shift:], *plans[:shift]]:
            done = llm.generate([case.ids], case.params, plan=plan, progress=progress)[0]
            yield record_of(case, plan, done, seed)


def environment(llm: LLM, model: str) -> dict[str, Any]:
    """What a figure depends on besides plan and seed. model: the name it was asked for by."""
    versions = {
        "winnow": winnow.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
    device, finds = str(llm.device), llm.decoder.shape.finds
    return {
        "model": model,
        "architecture": type(llm.model).__name__,
        "device": torch.cuda.get_device_name(llm.device) if llm.device.type == "cuda" else device,
        "threads": torch.get_num_threads(),
        "dtype": str(llm.dtype).removeprefix("torch."),
        "prefill_chunk": llm.prefill_chunk,
        "versions": versions,
        **({} if finds is None else {"finds": finds}),  # where gates stand that nobody has placed
    }


def record_of(case: Case, plan: Plan, done: Completion, seed: int = 0) -> Record:
    """What `plan` has answered to `case`."""
    return Record(
        **case.answered(done.text, seed),
        plan=str(plan),
        depths=case.example.depths,
        token_ids=tuple(done.token_ids),
        finish_reason=done.finish_reason,
        stats=done.stats,
    )
