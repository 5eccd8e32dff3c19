"""`steps`, `overhead`, `together`, `arrival`, `turns`, `replicas`, `mapped`, ...: what tokens take, and lie in."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks.options import (
    CHUNK,
    Cached,
    Chunk,
    Prefilled,
    Repeats,
    ShapeOptions,
    TextOptions,
    TextOrShapeOptions,
)
from winnow.cli.commands.compare import PeerOptions
from winnow.cli.options import (
    MODEL,
    AtLeast1,
    AtLeast2,
    ModelOptions,
    OutOptions,
    PlansOptions,
    PlotOptions,
    Seed,
    check_plans,
)

Length = Annotated[int, Parameter(alias="-l", validator=Number(gte=1))]


@dataclass(frozen=True, kw_only=True)
class Steps(PlansOptions, TextOptions, OutOptions):
    """Milliseconds per decode step after so many tokens of a text, plan beside plan, the text's own tokens fed.

    Without --plan: full attention and what most policies make of a budget of 512 units, where the model can run it.
    """

    length: Cached = (2048, 8000)
    steps: AtLeast1 = 8
    """Steps of each plan in a turn."""
    repeats: Repeats = 9

    def __call__(self) -> int:
        from benchmarks.steps_command import steps

        return steps(self)


@dataclass(frozen=True, kw_only=True)
class Sparse(PlansOptions, TextOrShapeOptions, PlotOptions):
    """Seconds to prefill a prompt of a text under plans that skip what its rows read, and how close they stay to full.

    Without --plan: full attention and a few settings of every such policy.
    """

    length: Prefilled = (8000,)
    tail: AtLeast1 = 128
    """Tokens of the text after the prompt, along which plans are compared."""
    repeats: Repeats = 5

    def __call__(self) -> int:
        from benchmarks.sparse_command import sparse

        return sparse(self)


@dataclass(frozen=True, kw_only=True)
class Overhead(PlansOptions, TextOptions, OutOptions):
    """What a decode step of one sequence spends outside kernels, and the Python calls that it makes.

    Steps are the engine's, with sampling and text. Kernels are Winnow's compiled ones, timed where Python enters them;
    what torch computes beside them counts as outside.
    """

    length: Length = 64
    """Prompt tokens."""
    steps: AtLeast1 = 32
    """Steps of each plan in a turn."""
    repeats: Repeats = 9

    def __call__(self) -> int:
        from benchmarks.overhead_command import overhead

        return overhead(self)


@dataclass(frozen=True, kw_only=True)
class Together(PlansOptions, TextOrShapeOptions, OutOptions):
    """Tokens per second of sequences that decode together, beside one alone, the machine's floor and transformers.

    Every plan for all of them, and all plans mixed. The floor: the products of so many rows, and everybody's units at
    the rate at which this machine reads. transformers: continuous batching, dense weights.
    """

    length: Length = 4096
    """Prompt tokens of each sequence."""
    sequences: Annotated[int, Parameter(validator=Number(gte=2))] = 8
    """How many decode together."""
    steps: AtLeast1 = 16
    """Steps of each arm in a turn."""
    repeats: Repeats = 5
    stock: Annotated[bool, Parameter(negative="--no-stock")] = True
    """Measure transformers too."""

    def __call__(self) -> int:
        from benchmarks.together_command import together

        return together(self)


@dataclass(frozen=True, kw_only=True)
class Arrival(TextOptions, PlotOptions):
    """What a long prompt that arrives costs those who decode, and what they cost it, by the limits of a step.

    Gaps are steps in which the others get a token; a gap is compared with the undisturbed ones of its turn.
    """

    length: Length = 8000
    """Tokens of the prompt that arrives."""
    sequences: AtLeast1 = 4
    """How many decode meanwhile."""
    running: AtLeast1 = 512
    """Prompt tokens of each of these."""
    slower: Annotated[float, Parameter(validator=Number(gt=1))] = 2.5
    """max_step_s, over their undisturbed gap."""
    max_step_tokens: tuple[AtLeast1, ...] = (32, 64, 128, 256, 512)
    """Limits of the curve, each an engine without max_step_s; repeatable."""
    repeats: Repeats = 5
    """Turns of the arrival under max_step_s, and of the prompt alone."""
    curve_repeats: AtLeast1 = 1
    """Turns of each limit of the curve."""
    patience: Annotated[float, Parameter(validator=Number(gt=0))] = 40
    """Seconds after which a prompt that has no token yet is given up."""

    def __call__(self) -> int:
        from benchmarks.arrival_command import arrival

        return arrival(self)


@dataclass(frozen=True, kw_only=True)
class Turns(PlansOptions, TextOptions, OutOptions):
    """What the turns of a chat over a document wait for, on an engine that retains sequences that have ended.

    Without --plan: full attention and plans of every kind of which something may be gone on from.
    """

    length: Length = 6000
    """Tokens of the document."""
    turns: AtLeast2 = 10
    """Of a chat."""
    new: AtLeast1 = 32
    """Tokens of an answer."""
    again: Annotated[int, Parameter(validator=Number(gte=0))] = 1
    """Last turns of a chat that an engine which retains nothing is asked, too: is the answer the same?"""
    repeats: Annotated[int, Parameter(validator=Number(gte=1))] = 3
    """Chats of every plan."""
    deterministic: bool = False
    """Nothing may be rounded otherwise in other company, or where a prompt is cut elsewhere."""
    max_cache_mib: Annotated[float | None, Parameter(validator=Number(gt=0))] = None
    """All that the chat and what is retained hold, at most. Default: what they need."""

    def __call__(self) -> int:
        from benchmarks.turns_command import turns

        return turns(self)


@dataclass(frozen=True, kw_only=True)
class Replicas(OutOptions):
    """What clients of two replicas get, and wait for, while one is killed in the middle of their streams.

    Half of the streams are greedy, half are drawn by a seed; the same undisturbed are what they are compared with.
    """

    model: Annotated[str | None, Parameter(alias="-m", group=MODEL)] = None
    """A .gguf file, a directory, a hub id, "smollm2" (the default where installed), or "needle" (a bundled toy)."""
    threads: AtLeast1 = 1
    """Of a replica."""
    plan: Annotated[str, Parameter(alias="-p", validator=check_plans)] = "full"
    """Of all streams."""
    streams: AtLeast1 = 20
    """At once."""
    new: AtLeast1 = 64
    """Tokens of a stream."""
    ray: bool = False
    """Two nodes of Ray on this machine instead of two processes; then a node is removed, too (needs ray)."""

    def __call__(self) -> int:
        from benchmarks.replicas_command import replicas

        return replicas(self)


@dataclass(frozen=True, kw_only=True)
class Mapped(ShapeOptions, OutOptions):
    """Memory and tokens per second of a context in files, in a part of memory that it is larger than.

    Each run in a process of its own: a prompt that fits, in memory and in files, and a long one in files. Tokens and
    weights are random.
    """

    shape: Annotated[str, Parameter(group=MODEL)] = "smollm2-135m"
    """smollm2-135m, qwen3-0.6b, qwen3-4b, llama-3.2-1b, llama-3.1-8b or needle-like; the weights are random."""
    length: Length = 65536
    """Tokens of the long prompt."""
    fits: AtLeast1 = 4096
    """Tokens of the prompt that is asked in memory too."""
    steps: AtLeast1 = 64
    """Tokens after the prompt."""
    plan: Annotated[str, Parameter(alias="-p")] = "quest(page=128, budget=768, dense_layers=0)"
    """What to spend, but for how units are stored; `winnow plans` lists policies."""
    resident_mib: AtLeast1 = 256
    """MiB of units that are in memory at once."""
    path: Path | None = None
    """The directory for the files. Default: the system's for temporary ones."""
    prefill_chunk: Chunk = CHUNK

    def __call__(self) -> int:
        from benchmarks.mapped_command import mapped

        return mapped(self)


@dataclass(frozen=True, kw_only=True)
class Forks(TextOptions, OutOptions):
    """Memory of samples of one prompt, which share what they have in common, each count in a process of its own."""

    length: Length = 8000
    """Prompt tokens."""
    samples: tuple[AtLeast1, ...] = (1, 16)
    """Samples of the prompt; repeatable."""
    steps: AtLeast1 = 32
    """Tokens of each sample."""
    plan: Annotated[str, Parameter(alias="-p")] = "full"
    """What to spend; `winnow plans` lists policies."""
    repeats: AtLeast1 = 1
    """Processes of each count; medians are shown."""

    def __call__(self) -> int:
        from benchmarks.forks_command import forks

        return forks(self)


@dataclass(frozen=True, kw_only=True)
class Attention(PlansOptions, ShapeOptions, OutOptions):
    """What attention takes of a decode step after many cached tokens, by how their units are held.

    Caches are filled with random units instead of a prefill. Attention: the step less the same step over two units.
    """

    length: Length = 32768
    """Tokens cached before."""
    weights: Annotated[Literal["dense", "int4"], Parameter(group=MODEL)] = "int4"
    """How the model's weights are held."""
    steps: AtLeast1 = 5
    """Steps of each plan in a turn."""
    repeats: Repeats = 9

    def __call__(self) -> int:
        from benchmarks.attention_command import attention

        return attention(self)


@dataclass(frozen=True, kw_only=True)
class Stores(PlansOptions, PeerOptions, ModelOptions, OutOptions):
    """What it costs to hold units in fewer bits: divergence from full attention, perplexity, answers, and bytes.

    Without --plan: `quantized` with 8, 4 and 2 bits, keys by channel and by token, transformed or not, before rotation
    or after it, and `hf_quantized`, where the model can run them. Stores of keys before rotation are slow.
    """

    text: tuple[Path, ...] = ()
    """A text file; repeatable. Default: the bundled books."""
    length: Cached = (2048, 4096)
    fed: AtLeast2 = 128
    """Tokens fed one by one after each prompt, the same ones whatever its length."""
    windows: AtLeast1 = 4
    """Passages of each text."""
    questions: Annotated[int, Parameter(validator=Number(gte=0))] = 0
    """Of each task, at every length; 0: none are asked."""
    task: Annotated[tuple[str, ...], Parameter(alias="-t")] = ()
    """Repeatable. Default: passkey, number, kv, multi_needle."""
    seed: Seed = 0
    """Of the questions; the same seed makes the same ones for every plan."""

    def __call__(self) -> int:
        from benchmarks.stores_command import stores

        return stores(self)
