"""The options that benchmarks share, beside those of `winnow`; nothing here loads torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from winnow.cli.options import MODEL, MOST_THREADS, TASK, AtLeast1, ModelOptions, TaskOptions
from winnow.errors import InputError

if TYPE_CHECKING:
    from benchmarks.source import Source
    from winnow import LLM, Plan

PROGRAM = "python -m benchmarks"
SHAPE = "qwen3-0.6b"
CHUNK = 512  # prompt tokens computed at a time, whatever the weights are

Cached = Annotated[tuple[AtLeast1, ...], Parameter(alias="-l", help="Tokens cached before; repeatable.")]
Prefilled = Annotated[tuple[AtLeast1, ...], Parameter(alias="-l", help="Prompt tokens; repeatable.")]
Repeats = Annotated[int, Parameter(help="Timed turns of each arm.", validator=Number(gte=2))]
Warmup = Annotated[int, Parameter(help="Turns of each arm that are not counted.", validator=Number(gte=1))]
Turns = Annotated[
    int, Parameter(help="How many times every arm is started anew, one after another.", validator=Number(gte=1))
]
Chunk = Annotated[int, Parameter(help="Prompt tokens computed at a time.", group=MODEL, validator=Number(gte=1))]


@dataclass(frozen=True, kw_only=True)
class HostOptions:
    """In which numbers a model computes, and on how many cores."""

    dtype: Annotated[str, Parameter(group=MODEL)] = "bfloat16"
    """Of activations, cache and unpacked weights: float32, bfloat16 or float16."""
    threads: Annotated[int | None, Parameter(group=MODEL, validator=Number(gte=1, lte=MOST_THREADS))] = None
    """CPU threads. Default: torch's own choice."""

    def of_model(self, **others: Any) -> ModelOptions:
        """The same, for a model that `others` are said of."""
        return ModelOptions(dtype=self.dtype, threads=self.threads, **others)


@dataclass(frozen=True, kw_only=True)
class ShapeOptions(HostOptions):
    """A model of a known shape with random weights."""

    shape: Annotated[str, Parameter(group=MODEL)] = SHAPE
    """smollm2-135m, qwen3-0.6b, qwen3-4b, llama-3.2-1b, llama-3.1-8b or needle-like; the weights are random."""
    device: Annotated[str, Parameter(group=MODEL)] = "cpu"
    """cpu or cuda."""

    def load(self, plans: "Sequence[Plan]", tokens: int, prefill_chunk: int | None = None) -> "LLM":
        """The model, known to take `tokens` and to follow the plans. Raises CapacityError, InputError or PlanError."""
        from benchmarks.source import Source, load_checked

        held = self.of_model(device=self.device, prefill_chunk=prefill_chunk)
        return load_checked(Source(held, self.shape), plans, tokens)


@dataclass(frozen=True, kw_only=True)
class TextOptions(ModelOptions):
    """A model on real text."""

    text: Path | None = None
    """A text file. Default: the bundled books."""


@dataclass(frozen=True, kw_only=True)
class TextOrShapeOptions(TextOptions):
    """A model on real text, or a known shape with random weights, on random tokens."""

    shape: Annotated[str | None, Parameter(group=MODEL)] = None
    """Random weights of a known shape instead of a model: timed only."""

    def source(self) -> "Source":
        """Raises InputError where a text is given for random weights."""
        from benchmarks.source import Source

        if self.shape is not None and self.text is not None:
            raise InputError("--shape has random weights, for which no text is closer than another; leave --text out")
        return Source(self, self.shape)


@dataclass(frozen=True, kw_only=True)
class OneLengthOptions(TaskOptions):
    """Generated examples of one length."""

    length: Annotated[tuple[AtLeast1, ...], Parameter(alias="-l", group=TASK)] = ()
    """Prompt tokens, once. Default: 4096."""

    @property
    def tokens(self) -> int:
        """The length. Raises InputError where several are given."""
        if len(self.lengths) > 1:
            raise InputError(f"--length is given {len(self.lengths)} times; this benchmark takes one")
        return self.lengths[0]
