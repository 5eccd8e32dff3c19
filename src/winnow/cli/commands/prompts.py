"""`winnow run` and `winnow chat`: one prompt, or a conversation."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from winnow.cli.command import Command
from winnow.cli.options import OUTPUT, AdapterOptions, JsonOptions, PromptOptions, check_plans
from winnow.parameters import Natural
from winnow.sampling import SamplingParams


@dataclass(frozen=True)
class Sampling(SamplingParams):
    """Sampling as it is typed: without what is for programs."""

    logit_bias: Annotated[dict[int, float], Parameter(parse=False)] = field(default_factory=dict)
    prompt_logprobs: Annotated[Natural | None, Parameter(parse=False)] = None


@dataclass(frozen=True, kw_only=True)
class OwnPlan:
    """The one plan that a command runs."""

    plan: Annotated[str | None, Parameter(alias="-p", validator=check_plans)] = None
    """Default: full, or what the model or adapter was trained for."""
    sampling: Annotated[Sampling, Parameter(name="*")] = field(default_factory=Sampling)


@dataclass(frozen=True, kw_only=True)
class Run(OwnPlan, PromptOptions, AdapterOptions, JsonOptions, Command, runs="winnow.cli.run:run"):
    """Continue a prompt; the text appears as it is made."""

    stats: Annotated[bool, Parameter(group=OUTPUT)] = False
    """Print what it cost, on standard error."""


@dataclass(frozen=True, kw_only=True)
class Chat(OwnPlan, AdapterOptions, Command, runs="winnow.cli.chat:chat"):
    """Talk with a model: type a message, read the answer; an empty line or Ctrl-D ends it.

    A turn goes on from those before, as far as the plan lets it. /reset forgets what was said.
    """

    system: str | None = None
    """What the model is told before the first message."""
    file: Annotated[Path | None, Parameter(alias="-f")] = None
    """A document to talk about, put before the first message."""
    retain_mib: Annotated[float, Parameter(validator=Number(gte=0, lte=2**30))] = 1024.0
    """Of earlier turns, which the next one goes on from. 0: every turn is computed anew."""
    stats: bool = False
    """Print what each answer cost."""
