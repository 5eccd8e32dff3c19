"""`winnow eval`: generated tasks, and its commands for a benchmark, for lm_eval's tasks, and for a text."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from winnow.cli.command import Command
from winnow.cli.main import COMMANDS, new_app
from winnow.cli.options import (
    TASK,
    AdapterOptions,
    AtLeast1,
    AtLeast2,
    OutOptions,
    PlansOptions,
    PlotOptions,
    Seed,
    Share,
    TaskOptions,
)

app = new_app("eval", COMMANDS["eval"][1])


@dataclass(frozen=True, kw_only=True)
class Tasks(PlansOptions, TaskOptions, AdapterOptions, PlotOptions, Command, runs="winnow.cli.evaluate:tasks"):
    """Score plans on generated retrieval tasks, by task, length and depth of the needle."""

    depth: Annotated[tuple[Share, ...], Parameter(group=TASK)] = ()
    """Where needles stand, 0 to 1; repeatable. Default: 0, 0.25, 0.5, 0.75, 1."""


@dataclass(frozen=True, kw_only=True)
class Benchmark(PlansOptions, AdapterOptions, OutOptions, Command, runs="winnow.cli.evaluate:benchmark"):
    """Score plans on a published benchmark (longbench, infinitebench, leval), from its files."""

    name: str = field(kw_only=False)
    """longbench, infinitebench or leval."""
    data: Path
    """The directory that holds its published files."""
    task: Annotated[tuple[str, ...], Parameter(alias="-t")] = ()
    """A dataset of it; repeatable. Default: all."""
    length: Annotated[int | None, Parameter(alias="-l", validator=Number(gte=1))] = None
    """The most prompt tokens, past which a prompt loses its middle. Default: what the model takes."""
    examples: Annotated[int | None, Parameter(alias="-n", validator=Number(gte=1))] = None
    """Questions of each dataset, the first ones. Default: all."""


@dataclass(frozen=True, kw_only=True)
class Harness(PlansOptions, AdapterOptions, OutOptions, Command, runs="winnow.cli.evaluate_harness:harness"):
    """Score plans on tasks of lm_eval (needs the extra `eval`)."""

    names: tuple[str, ...] = field(kw_only=False)
    """Tasks, groups or task files; `lm_eval ls tasks` lists them."""
    limit: AtLeast1 | None = None
    """Documents of each task. Default: all."""
    num_fewshot: Annotated[int | None, Parameter(validator=Number(gte=0))] = None
    """Solved examples first. Default: what the task says."""
    include_path: Path | None = None
    """A directory with task files of your own."""
    metadata: str | None = None
    """JSON for tasks that make data, such as {"max_seq_lengths": [4096]}."""
    apply_chat_template: bool = False
    """Ask in the model's chat template."""
    seed: Seed = 0
    """Of answers that a task wants sampled."""


@dataclass(frozen=True, kw_only=True)
class Text(PlansOptions, AdapterOptions, OutOptions, Command, runs="winnow.cli.evaluate:text"):
    """How far plans stay from full attention on a text; without a plan, full attention's perplexity on it."""

    file: Path = field(kw_only=False)
    """A text file."""
    prompt_tokens: AtLeast1 | None = None
    """Tokens prefilled, the others are fed. Default: half."""
    tokens: AtLeast2 | None = None
    """Use the first so many. Default: all."""


app.default(Tasks)
app.command(Tasks, name="tasks")
app.command(Benchmark, name="benchmark")
app.command(Harness, name="harness")
app.command(Text, name="text")
