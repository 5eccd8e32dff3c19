"""What schedules of layers rest on, save and cost: `sweep`, `depth`, `usage`, `sparsity` and `schedule`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.options import OneLengthOptions
from winnow.cli.options import (
    MODEL,
    MOST_THREADS,
    OUTPUT,
    AdapterOptions,
    AtLeast1,
    ModelOptions,
    OutOptions,
    PlansOptions,
    PlotOptions,
    TaskOptions,
)

Against = Literal["ttft", "flops", "rows", "generation"]


@dataclass(frozen=True, kw_only=True)
class Sweep(PlansOptions, TaskOptions, AdapterOptions, PlotOptions):
    """Score, speed-up and work saved for many plans, next to full attention on the same prompts."""

    seeds: AtLeast1 = 5  # the runs that the LazyLLM paper averages random drops over
    """Seeds that a plan with a seed is averaged over."""
    against: Annotated[Against | None, Parameter(group=OUTPUT)] = None
    """What --plot draws the score against. Default: ttft."""

    def __call__(self) -> int:
        from benchmarks.layers_command import sweep

        return sweep(self)


@dataclass(frozen=True, kw_only=True)
class Depth(OneLengthOptions, ModelOptions, PlotOptions):
    """Score with exactly one pruning layer, by its depth and by the share of the prompt that goes on there."""

    layer: tuple[int, ...] = ()
    """A pruning layer; repeatable. Default: all that can be."""
    keep: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
    """A share of the prompt that goes on; repeatable."""

    def __call__(self) -> int:
        from benchmarks.layers_command import depth

        return depth(self)


@dataclass(frozen=True, kw_only=True)
class Usage(OneLengthOptions, ModelOptions, PlotOptions):
    """Share of the prompt that each stage of layers has computed, step by step of a generation."""

    plan: Annotated[str, Parameter(alias="-p")] = "lazyllm"
    """What to spend; `winnow plans` lists policies."""
    max_tokens: AtLeast1 | None = None
    """The longest answer. Default: the task's own limit."""

    def __call__(self) -> int:
        from benchmarks.layers_command import usage

        return usage(self)


@dataclass(frozen=True, kw_only=True)
class Sparsity(OneLengthOptions, ModelOptions, PlotOptions):
    """How few prompt tokens hold the attention of the last one, layer by layer, under full attention."""

    mass: tuple[float, ...] = (0.5, 0.9, 0.99)
    """A share of the attention; repeatable."""

    def __call__(self) -> int:
        from benchmarks.layers_command import sparsity

        return sparsity(self)


@dataclass(frozen=True, kw_only=True)
class Schedule(OutOptions):
    """Propose a LazyLLM plan for a wanted cost of prefill, with its cost per layer; counted, nothing is run."""

    length: Annotated[int, Parameter(alias="-l", validator=Number(gte=1))] = 4096
    """Prompt tokens."""
    speedup: float | None = None
    """Compute 1/SPEEDUP of the layer-token rows in prefill."""
    rows: float | None = None
    """Compute at most this share of the layer-token rows in prefill."""
    flops: float | None = None
    """Spend at most this share of the operations of prefill."""
    model: Annotated[str | None, Parameter(alias="-m", group=MODEL)] = None
    """A model by its name; nothing of it is run. Default: as for `winnow run`."""
    threads: Annotated[int | None, Parameter(group=MODEL, validator=Number(gte=1, lte=MOST_THREADS))] = None
    """CPU threads. Default: torch's own choice."""

    def __call__(self) -> int:
        from benchmarks.layers_command import schedule

        return schedule(self)
