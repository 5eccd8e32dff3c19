"""Cumulative token usage: how much of the prompt every layer has computed, step by step of a generation."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.watch import generate_watched
from winnow import LLM, Plan, SamplingParams
from winnow.evaluation.evaluate import Case, Progress, cases, check_lengths, silent
from winnow.tasks import Task


@dataclass(frozen=True)
class Generation:
    """One example. computed: [new tokens][layers], prompt tokens a layer has computed before each new token."""

    task: str
    index: int
    prompt_tokens: int
    new_tokens: int
    computed: list[list[int]]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Stage:
    """Consecutive layers `first` .. `last` that have computed the same share of the prompt at every step.

    share: [steps], 0 .. 1, the mean over examples; step 0 is prefill. An answer that has ended counts with its last
    share, so that every step is about the same examples.
    """

    first: int
    last: int
    share: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def usage(
    llm: LLM,
    plan: str | Plan,
    tasks: Sequence[Task],
    length: int,
    examples: int,
    *,
    max_tokens: int | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Iterator[Generation]:
    """Answer the examples under `plan`; yields one Generation each.

    max_tokens: the longest answer, instead of the task's own limit. progress: called with the number of prompt tokens
    just processed. Raises, before any work: InputError, CapacityError, PlanError where something cannot be run.
    """
    chosen = Plan.parse(plan)
    check_lengths(llm, [chosen], [length])
    for task in tasks:
        first = next(cases(llm, [task], [length], 1, seed=seed))
        llm.check([first.ids], _params(first, max_tokens), plan=chosen)
    made = cases(llm, tasks, [length], examples, seed=seed)
    return (_generation(llm, chosen, case, max_tokens, progress) for case in made)


def stages(generations: Sequence[Generation]) -> list[Stage]:
    """The layers in runs of equal shares, from the bottom up."""
    steps = max(len(each.computed) for each in generations)
    layers = len(generations[0].computed[0])
    found: list[Stage] = []
    for layer in range(layers):
        share = tuple(
            sum(_at(each, step)[layer] / each.prompt_tokens for each in generations) / len(generations)
            for step in range(steps)
        )
        if found and found[-1].share == share:
            found[-1] = replace(found[-1], last=layer)
        else:
            found.append(Stage(layer, layer, share))
    return found


def still_running(generations: Sequence[Generation]) -> list[int]:
    """[steps] how many of the examples took each step."""
    steps = max(len(each.computed) for each in generations)
    return [sum(len(each.computed) > step for each in generations) for step in range(steps)]


def _at(generation: Generation, step: int) -> list[int]:
    return generation.computed[min(step, len(generation.computed) - 1)]


def _params(case: Case, max_tokens: int | None) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens or case.example.max_tokens)


def _generation(llm: LLM, plan: Plan, case: Case, max_tokens: int | None, progress: Progress) -> Generation:
    done = generate_watched(llm, case.ids, _params(case, max_tokens), plan, progress)
    stats = done.completion.stats
    return Generation(case.task, case.index, stats.prompt_tokens, stats.new_tokens, done.computed)
