"""How every benchmark runs and ends: as a command of `winnow` does, with the machine in its JSON."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from benchmarks.machine import machine
from benchmarks.options import PROGRAM
from winnow import LLM
from winnow.cli import deliver
from winnow.cli.terminal import Meter, interruptible
from winnow.evaluation.evaluate import environment

Some = TypeVar("Some")


@dataclass(frozen=True)
class Record(deliver.Record):
    """What a benchmark has come to."""

    program: str = PROGRAM


def about(llm: LLM, model: str, **settings: object) -> dict[str, Any]:
    """What the figures depend on: the model by the name it was asked for, the machine, and settings."""
    return {**environment(llm, model), "machine": machine(llm.device), **settings}


def collect(title: str, total: int, wanted: str, made: Callable[..., Iterator[Some]]) -> list[Some]:
    """What `made(progress=...)` yields, to its end or to Ctrl-C.

    total: what the numbers given to `progress` add up to. wanted: how many there will be, such as "12 answers".
    """
    found: list[Some] = []
    with Meter(title, total) as meter, interruptible():
        for each in made(progress=meter.advance):
            found.append(each)
            meter.note(f"{len(found)} of {wanted}")
    return found
