"""Models of known shapes with random weights: `decode`, `prefill`, `decoding`, `generation`, and `table` and `plot`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.options import CHUNK, Cached, Chunk, Prefilled, Repeats, ShapeOptions, Warmup
from winnow.cli.options import OUTPUT, AtLeast1, OutOptions, PlansOptions, PlotOptions


@dataclass(frozen=True, kw_only=True)
class Decode(PlansOptions, ShapeOptions, OutOptions):
    """Seconds per decode step after so many cached tokens, beside stock transformers."""

    length: Cached = (64, 8192, 32768)
    repeats: Repeats = 7
    warmup: Warmup = 2

    def __call__(self) -> int:
        from benchmarks.speed_command import decode

        return decode(self)


@dataclass(frozen=True, kw_only=True)
class Prefill(PlansOptions, ShapeOptions, OutOptions):
    """Seconds to prefill a prompt of so many tokens, beside stock transformers."""

    length: Prefilled = (2048, 4096)
    repeats: Repeats = 5
    warmup: Warmup = 1
    prefill_chunk: Chunk = CHUNK

    def __call__(self) -> int:
        from benchmarks.speed_command import prefill

        return prefill(self)


@dataclass(frozen=True, kw_only=True)
class Table:
    """Show records of decode or prefill again."""

    file: Path = field(kw_only=False)
    """Records of decode or prefill, written by --out."""
    markdown: bool = False
    """As a Markdown page."""

    def __call__(self) -> int:
        from benchmarks.speed_command import show

        return show(self)


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Draw records of decode or prefill: seconds over tokens."""

    files: tuple[Path, ...] = field(kw_only=False)
    """Records of decode or prefill; a panel for each."""
    out: Annotated[Path, Parameter(name=["--out", "--output", "-o"], group=OUTPUT)]
    """Draw there, as PNG (needs matplotlib)."""

    def __call__(self) -> int:
        from benchmarks.speed_command import draw

        return draw(self)


@dataclass(frozen=True, kw_only=True)
class Decoding(PlansOptions, ShapeOptions, PlotOptions):
    """Time per token of whole decodes under plans, alone and in batches, next to full attention's and to stock's.

    The weights, the cached units and the tokens are random, and there is no text: slow steps come periodically or by
    chance. All sequences of a batch have the same length and, where they have slow steps, have them together.
    """

    length: Cached = (8192, 32768)
    batch: Annotated[tuple[AtLeast1, ...], Parameter(alias="-b")] = (1,)
    """Sequences decoded together; repeatable."""
    new: AtLeast1 = 128
    """Tokens decoded by every sequence."""
    stock_steps: Annotated[int, Parameter(validator=Number(gte=0))] = 5
    """Steps of stock transformers, one sequence; 0: leave it out."""
    full_steps: AtLeast1 = 16
    """Steps of full attention, which are all alike."""
    repeats: Repeats = 3

    def __call__(self) -> int:
        from benchmarks.decoding_command import decoding

        return decoding(self)


@dataclass(frozen=True, kw_only=True)
class Generation(PlansOptions, ShapeOptions, OutOptions):
    """Time to the first token, decode steps and whole generations under plans, next to full attention's.

    The weights are random, so attention is too: more tokens are revived than a trained model would ask for.
    """

    length: Annotated[int, Parameter(alias="-l", validator=Number(gte=1))] = 4096
    """Prompt tokens."""
    new: Annotated[int, Parameter(validator=Number(gte=3))] = 32
    """Tokens generated after the prompt."""
    repeats: Repeats = 5
    prefill_chunk: Chunk = CHUNK

    def __call__(self) -> int:
        from benchmarks.generation_command import generation

        return generation(self)
