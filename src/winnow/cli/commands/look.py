"""`winnow diagnose` and `winnow inspect`: what happens inside."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from winnow.cli.command import Command
from winnow.cli.main import COMMANDS, new_app
from winnow.cli.options import (
    OUTPUT,
    AdapterOptions,
    AtLeast0,
    AtLeast1,
    AtLeast2,
    DocumentOptions,
    JsonOptions,
    PlotOptions,
    PromptOptions,
    TaskOptions,
    check_plans,
)

app = new_app("diagnose", COMMANDS["diagnose"][1])


@dataclass(frozen=True, kw_only=True)
class _Diagnosis(DocumentOptions, TaskOptions, AdapterOptions, PlotOptions):
    """On generated tasks, or on --file: a text, or with .jsonl a prompt a line (a field prompt or messages)."""

    max_tokens: AtLeast2 | None = None
    """The longest answer. Default: the task's own limit; 128 about --file."""
    ignore_eos: bool = False
    """Go on past the model's stop tokens."""


@dataclass(frozen=True, kw_only=True)
class Layers(_Diagnosis, Command, runs="winnow.cli.diagnose:layers"):
    """Where each layer's attention goes, how sharply it reads the prompt, how straight hidden states run; a cutoff.

    Answers greedily under full attention, and recommends at which layer the prompt could stop (`speed`).
    """


@dataclass(frozen=True, kw_only=True)
class Support(_Diagnosis, Command, runs="winnow.cli.diagnose:support"):
    """How much of what a step attends to the steps after it attend to too, by layer and KV head.

    This is what `slowfast` lives on. Looks at full attention.
    """

    plan: Annotated[str | None, Parameter(alias="-p", validator=check_plans)] = None
    """When and how to select: "slowfast(...)"."""
    budget: Annotated[int | None, Parameter(validator=Number(gte=1))] = None
    """Units that it selects. Default: a sixteenth of the prompt."""


@dataclass(frozen=True, kw_only=True)
class Patterns(DocumentOptions, AdapterOptions, JsonOptions, Command, runs="winnow.cli.diagnose_patterns:patterns"):
    """Search on --file which pattern each head's attention to a prompt has, for minference(heads='OUT').

    Of a few patterns each head gets the one that holds most of its attention, on one text of ten thousand tokens or
    more.
    """

    out: Annotated[Path, Parameter(name=["--out", "--output", "-o"])]
    """A new directory for head_patterns.json."""


@dataclass(frozen=True, kw_only=True)
class Needles(TaskOptions, AdapterOptions, PlotOptions, Command, runs="winnow.cli.diagnose_needles:needles"):
    """In which layer the end of a prompt finds what it asks for, and how many tokens have to go on to have it.

    Reads generated needles under full attention. This is what `fastkv` and `lazyllm` live on.
    """

    voters: AtLeast1 = 32
    """Last prompt tokens whose attention counts."""
    kernel: AtLeast1 = 47
    """Tokens that it is pooled over, an odd count: each gets the best of its neighbours'."""
    before: AtLeast0 = 7
    """How many of them share what one gets that they stand before, at most half; the others stand behind it."""


app.default(Layers)
app.command(Layers, name="layers")
app.command(Support, name="support")
app.command(Patterns, name="patterns")
app.command(Needles, name="needles")


@dataclass(frozen=True, kw_only=True)
class Inspect(PromptOptions, AdapterOptions, JsonOptions, Command, runs="winnow.cli.inspect:inspect"):
    """Continue a prompt greedily and draw which tokens each layer computed, reused, parked and revived.

    And, where the plan evicts units, which of them each KV head kept.
    """

    plan: Annotated[str | None, Parameter(alias="-p", validator=check_plans)] = None
    """What to spend; `winnow plans` lists policies. Default: what the model or adapter was trained for, else
    lazyllm."""
    max_tokens: AtLeast1 = 32
    """The most new tokens."""
    ignore_eos: bool = False
    """Go on past the model's stop tokens."""
    out: Annotated[Path, Parameter(name=["--out", "--output", "-o"], group=OUTPUT)] = Path("trace.html")
    """Write the page there."""
    trace: Annotated[Path | None, Parameter(group=OUTPUT)] = None
    """Write the trace there too, as JSON."""
    retained: Annotated[Path | None, Parameter(group=OUTPUT)] = None
    """Draw there what every layer and KV head kept, as PNG."""
