"""`winnow compare`, `winnow demo` and `winnow tune`: plans side by side."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from winnow.cli.command import Command
from winnow.cli.options import (
    OUTPUT,
    AdapterOptions,
    AtLeast1,
    AtLeast2,
    ChatTemplate,
    DocumentOptions,
    OutOptions,
    PlansOptions,
    PlotOptions,
    Share,
    TaskOptions,
)
from winnow.tune.limits import Limits


@dataclass(frozen=True, kw_only=True)
class PeerOptions:
    """What people would use instead."""

    peer: tuple[str, ...] = ()
    """What people would use instead (hf, kvpress, llama.cpp); repeatable. See docs/peers.md."""
    peer_python: tuple[str, ...] = ()
    """FAMILY=PATH: the Python that has a family of peers; repeatable."""


@dataclass(frozen=True, kw_only=True)
class Compare(
    PlansOptions,
    PeerOptions,
    DocumentOptions,
    TaskOptions,
    AdapterOptions,
    PlotOptions,
    Command,
    runs="winnow.cli.compare:compare",
):
    """Answer the same questions under several plans: quality, time and memory next to full attention, and to peers.

    The questions are generated tasks, or one about --file.
    """

    depth: Share | None = None
    """Where the needle stands, 0 to 1. Default: drawn anew each time."""
    max_tokens: AtLeast1 | None = None
    """The longest answer about --file. Default: 128."""


@dataclass(frozen=True, kw_only=True)
class Demo(PlansOptions, AdapterOptions, OutOptions, Command, runs="winnow.cli.demo:demo"):
    """Ask a pre-trained model about a real document under several plans: answers, times and memory side by side."""


@dataclass(frozen=True, kw_only=True)
class Tune(TaskOptions, AdapterOptions, PlotOptions, Command, runs="winnow.cli.tune:tune"):
    """Find the fastest plan that keeps to limits on prompts of yours; exit code 1 if there is none."""

    prompts: Path | None = field(default=None, kw_only=False)
    """A directory of .txt and .md files, or JSON Lines. Default: generated tasks."""
    limits: Annotated[Limits, Parameter(name="*")] = field(default_factory=Limits)
    time_limit: Annotated[float, Parameter(validator=Number(gte=1))] = 300.0
    """Seconds; the command ends within it."""
    state: Path | None = None
    """Keep measurements in this file; the same command again goes on with them."""
    out_plan: Annotated[Path | None, Parameter(group=OUTPUT)] = None
    """Write the recommended plan there, for --plan @FILE."""
    answer_tokens: AtLeast2 | None = None
    """The longest answer to PROMPTS that is looked at. Default: 32."""
    chat: ChatTemplate = None
    """Use the chat template. Default: if there is one."""
