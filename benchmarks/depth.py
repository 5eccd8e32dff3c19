"""Exactly one pruning layer: what the score loses by how deep it lies and how much of the prompt goes on there."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from winnow import LLM, Plan
from winnow.errors import InputError
from winnow.evaluation.accuracy import wilson
from winnow.evaluation.compare import with_full
from winnow.evaluation.evaluate import Progress, Record, evaluate, silent
from winnow.policies.base import ModelShape
from winnow.policies.compute.lazyllm import LazyLLM
from winnow.policies.compute.schedule import last_layer
from winnow.tasks import Task


@dataclass(frozen=True)
class Cell:
    """LazyLLM with one pruning layer; None, None: full attention. score: 0 .. 1, over `examples`, with 95 % interval.

    scores: per task.
    """

    layer: int | None
    keep: float | None
    examples: int
    score: float
    low: float
    high: float
    scores: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def every_layer(shape: ModelShape) -> list[int]:
    """The layers at which LazyLLM may prune: from 1 to the last that saves memory.

    Raises InputError where there is none.
    """
    if layers := list(range(1, last_layer(shape) + 1)):
        return layers
    raise InputError(f"a model of {shape.layers} layers has no layer to prune at")


def grid(layers: Sequence[int], keep: Sequence[float]) -> dict[tuple[int, float], Plan]:
    """A plan for every layer and keep ratio. Raises PlanError where one of them is out of range."""
    return {(layer, share): Plan(compute=LazyLLM(layers=(layer,), keep=share)) for layer in layers for share in keep}


def depth(
    llm: LLM,
    plans: dict[tuple[int, float], Plan],
    tasks: Sequence[Task],
    length: int,
    examples: int,
    *,
    seed: int = 0,
    progress: Progress = silent,
) -> Iterator[Record]:
    """Answer the same examples under full attention and every plan of a `grid`.

    Raises, before any work: InputError, CapacityError, PlanError where a task, length or plan cannot be run.
    """
    return evaluate(llm, with_full(list(plans.values())), tasks, [length], examples, seed=seed, progress=progress)


def cells(records: Sequence[Record], plans: dict[tuple[int, float], Plan]) -> list[Cell]:
    """A cell for full attention, then one per plan of the grid; `records` of finished examples."""
    places: dict[tuple[int | None, float | None], str] = {(None, None): str(Plan())}
    places |= {place: str(plan) for place, plan in plans.items()}
    groups = {place: [record for record in records if record.plan == plan] for place, plan in places.items()}
    return [_cell(*place, group) for place, group in groups.items() if group]


def _cell(layer: int | None, keep: float | None, group: Sequence[Record]) -> Cell:
    by_task: dict[str, list[float]] = {}
    for record in group:
        by_task.setdefault(record.task, []).append(record.score or 0.0)
    score = sum(sum(each) for each in by_task.values()) / len(group)
    means = {task: sum(each) / len(each) for task, each in by_task.items()}
    return Cell(layer, keep, len(group), score, *wilson(score, len(group)), means)
