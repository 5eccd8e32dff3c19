"""How every benchmark runs and ends: as a command of `winnow` does, with the machine in its JSON."""

from dataclasses import dataclass
from typing import Any

from benchmarks.machine import machine
from benchmarks.options import PROGRAM
from winnow import LLM
from winnow.cli import deliver
from winnow.evaluation.evaluate import environment


@dataclass(frozen=True)
class Record(deliver.Record):
    """What a benchmark has come to."""

    program: str = PROGRAM


def about(llm: LLM, model: str, **settings: object) -> dict[str, Any]:
    """What the figures depend on: the model by the name it was asked for, the machine, and settings."""
    return {**environment(llm, model), "machine": machine(llm.device), **settings}
