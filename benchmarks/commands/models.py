"""`memory`, `beyond`, `fidelity`, `presses`, `peers`, `file`, `busy`: what models cost, how close plans stay."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.options import CHUNK, Chunk, HostOptions, Repeats, Turns, Warmup
from winnow.cli.commands.compare import PeerOptions
from winnow.cli.options import (
    MODEL,
    AdapterOptions,
    AtLeast1,
    AtLeast2,
    ModelOptions,
    OutOptions,
    PlansOptions,
    PlotOptions,
    Seed,
)


@dataclass(frozen=True, kw_only=True)
class Memory(PlansOptions, ModelOptions, PlotOptions):
    """Memory and tokens per second of long prompts, each in a process of its own, next to full attention's."""

    length: Annotated[tuple[AtLeast1, ...], Parameter(alias="-l")] = (4096, 16384, 65536, 131072)
    """Prompt tokens; repeatable."""
    full_up_to: Annotated[int, Parameter(validator=Number(gte=0))] = 32768
    """The longest prompt of full attention, in tokens; its time grows as length²."""
    shape: Annotated[str | None, Parameter(group=MODEL)] = None
    """Random weights instead of a model, with as many positions as it takes: qwen3-0.6b, llama-3.1-8b ..."""
    repeats: AtLeast1 = 1
    """Runs of each plan and length; medians are shown."""
    prefill_chunk: Chunk = CHUNK

    def __call__(self) -> int:
        from benchmarks.memory_command import memory

        return memory(self)


@dataclass(frozen=True, kw_only=True)
class Beyond(PlansOptions, ModelOptions, OutOptions):
    """Needles at five depths of prompts that are longer than the model has positions, and memory meanwhile.

    Without --plan: `infllm` over files, and `streaming`, which reads the first and the last tokens only.
    """

    times: Annotated[tuple[AtLeast1, ...], Parameter(help="Prompt tokens, in positions of the model; repeatable.")] = (
        2,
        4,
    )
    task: Annotated[str, Parameter(alias="-t")] = "passkey"
    """A task with a needle: passkey, number, niah_single, ..."""
    examples: Annotated[int, Parameter(alias="-n", validator=Number(gte=1))] = 2
    """Needles at each depth."""
    seed: Seed = 0
    """Of the examples; the same seed makes the same ones for every plan."""

    def __call__(self) -> int:
        from benchmarks.beyond_command import beyond

        return beyond(self)


@dataclass(frozen=True, kw_only=True)
class Fidelity(PlansOptions, AdapterOptions, PlotOptions):
    """Divergence from full attention, agreement and perplexity on the same windows of texts for all plans.

    Without --plan: every policy that has a budget, all at the same one.
    """

    data: Path
    """A directory of texts by domain."""
    budget: AtLeast1 | None = None
    """Units that every default plan keeps or reads. Default: a sixteenth of the length."""
    length: Annotated[int, Parameter(alias="-l", validator=Number(gte=1))] = 4096
    """Tokens of a window."""
    fed: AtLeast2 = 128
    """Last tokens of a window, fed one by one; the others are prefilled."""
    examples: Annotated[int, Parameter(alias="-n", validator=Number(gte=1))] = 4
    """Windows of each domain."""
    domain: tuple[str, ...] = ()
    """Repeatable. Default: all that the directory holds."""
    seed: Seed = 0
    """Of the windows; the same seed takes the same ones for every plan."""

    def __call__(self) -> int:
        from benchmarks.fidelity_command import fidelity

        return fidelity(self)


@dataclass(frozen=True, kw_only=True)
class Presses(ModelOptions, OutOptions):
    """Plans beside the presses of kvpress that they are translations of: kept units, divergence, bytes.

    Both compute with the same weights, plain and in float32 unless something else is asked for.
    """

    data: Path
    """A directory of texts by domain."""
    press: tuple[str, ...] = ()
    """As for `winnow plans --from`; repeatable. Default: every scorer that there is a plan for, a quarter kept."""
    peer_python: tuple[str, ...] = ()
    """kvpress=PATH: the Python that has it."""
    length: Annotated[int, Parameter(alias="-l", validator=Number(gte=1))] = 2048
    """Tokens of a window."""
    fed: AtLeast2 = 64
    """Last tokens of a window, fed one by one; the others are the prompt."""
    examples: Annotated[int, Parameter(alias="-n", validator=Number(gte=1))] = 2
    """Windows of each domain."""
    seed: Seed = 0
    """Of the windows."""
    weights: Annotated[Literal["auto", "packed", "int4", "dense"], Parameter(group=MODEL)] = "dense"
    dtype: Annotated[str | None, Parameter(group=MODEL)] = "float32"

    def __call__(self) -> int:
        from benchmarks.presses_command import presses

        return presses(self)


@dataclass(frozen=True, kw_only=True)
class Peers(PlansOptions, PeerOptions, HostOptions, OutOptions):
    """TPOT and cache bytes after many cached tokens: plans beside peers, the same weights and random units.

    Every arm runs in a process of its own, one at a time, on the CPU.
    """

    shape: Annotated[str | None, Parameter(group=MODEL)] = None
    """A shape with random weights, such as llama-3.2-1b. Default: qwen3-0.6b."""
    model: Annotated[str | None, Parameter(alias="-m", group=MODEL)] = None
    """A model's weights instead."""
    weights: Annotated[tuple[Literal["auto", "packed", "int4", "dense"], ...], Parameter(group=MODEL)] = ()
    """Every plan again, with weights held like this; repeatable."""
    length: Annotated[int, Parameter(alias="-l", validator=Number(gte=2))] = 32768
    """Tokens cached before."""
    repeats: Annotated[int, Parameter(validator=Number(gte=5))] = 5
    """Timed steps of each arm in a turn."""
    warmup: Warmup = 2
    turns: Turns = 2

    def __call__(self) -> int:
        from benchmarks.peers_command import peers

        return peers(self)


@dataclass(frozen=True, kw_only=True)
class File(PlansOptions, PeerOptions, HostOptions, OutOptions):
    """Time a GGUF file: prefill and tokens after it, Winnow packed and dense, llama.cpp's formats, transformers.

    Every arm runs in a process of its own, one at a time, on the CPU. --plan adds plans beside full attention, on
    packed weights; --peer replaces llama.cpp in all its formats and transformers.
    """

    model: str = field(kw_only=False)
    """A GGUF file."""
    text: Path
    """The text that is prefilled and followed; the same for all."""
    length: Annotated[tuple[AtLeast1, ...], Parameter(alias="-l")] = (64, 2048, 8000)
    """Tokens prefilled; repeatable."""
    steps: AtLeast2 = 16
    """Tokens of the text fed one by one after each prefill."""
    turns: Turns = 5
    prefill_chunk: Chunk = 2048
    resume: bool = False
    """Go on with what --out holds of the same measurement."""

    def __call__(self) -> int:
        from benchmarks.file_command import file

        return file(self)


@dataclass(frozen=True, kw_only=True)
class Busy(ModelOptions, OutOptions):
    """Time per token with another process at work on the machine and without: kernels on all threads, on one, watched.

    The prompt is random tokens. Whatever else runs on the machine is part of the result.
    """

    length: Annotated[int, Parameter(alias="-l", validator=Number(gte=1))] = 64
    """Prompt tokens."""
    new: AtLeast1 = 256
    """Tokens decoded in each turn."""
    processes: AtLeast1 = 1
    """Other processes, each of which keeps a core busy."""
    repeats: Repeats = 5

    def __call__(self) -> int:
        from benchmarks.busy_command import busy

        return busy(self)
