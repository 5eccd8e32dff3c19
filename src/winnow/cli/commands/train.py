"""`winnow train`: what a plan needs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from winnow.cli.command import Command
from winnow.cli.main import COMMANDS, new_app
from winnow.cli.options import OUTPUT, AdapterOptions, JsonOptions, ModelOptions
from winnow.learn.convolutions_recipe import ConvolutionsRecipe
from winnow.learn.gates_recipe import GatesRecipe
from winnow.learn.heads_recipe import HeadsRecipe
from winnow.learn.indexers_recipe import IndexersRecipe
from winnow.learn.recipe import Recipe

app = new_app("train", COMMANDS["train"][1])


def _count_or_share(kind: object, tokens: Sequence[Token]) -> int | float:
    """1 is a count and 1.0 a share: what takes either would round the share."""
    text = tokens[0].value
    try:
        return int(text)
    except ValueError:
        return float(text)


@dataclass(frozen=True, kw_only=True)
class Training(JsonOptions):
    """From what to train, and where to."""

    data: Path = field(kw_only=False)
    """JSON Lines: {"messages": [...]} or {"prompt": ..., "answer": ...}."""
    out: Annotated[Path, Parameter(name=["--out", "--output", "-o"])]
    """A new directory for what is made."""
    resume: bool = False
    """Go on from the last checkpoint in --out."""
    plot: Annotated[Path | None, Parameter(group=OUTPUT)] = None
    """Draw the figures over the steps there, as PNG, anew as it goes (needs matplotlib)."""


@dataclass(frozen=True, kw_only=True)
class Speed(Training, ModelOptions, Command, runs="winnow.cli.train_speed:speed"):
    """Train a model to answer from a prompt that stops at layer K (SPEED): LoRA, or all parameters with --full.

    With --cutoff 1.0 it is ordinary fine-tuning on the same batches, to compare with.
    """

    cutoff: Annotated[int | float, Parameter(converter=_count_or_share)] = 0.75
    """Layers for the prompt: a count, or a share; 1.0 is all."""
    anchors: str = "bos"
    """Prompt tokens for all layers: bos, none, system, first:4 ..."""
    decode_from: str = "header"
    """Where all layers begin: header, or last:m."""
    self_only: bool = False
    """Above the cutoff, tokens see anchors and themselves."""
    full: bool = False
    """Train all parameters, not LoRA adapters."""
    begin: str | None = None
    """Go on from the weights of an adapter: a directory, a bundled one, or a hub id."""
    teacher: str | None = None
    """Learn what an adapter of all layers says of every token of an answer, or "base", the model without one, and not
    the tokens themselves."""
    validation: Path | None = None
    """More data, to measure on and not to learn from: its loss, and KL from the teacher, or the model as it was."""
    recipe: Annotated[Recipe, Parameter(name="*")] = field(default_factory=Recipe)


@dataclass(frozen=True, kw_only=True)
class Heads(Training, AdapterOptions):
    """Of retaining heads."""

    recipe: Annotated[HeadsRecipe, Parameter(name="*")] = field(default_factory=HeadsRecipe)
    prefill_chunk: Annotated[int, Parameter(validator=Number(gte=1))] = 2048
    """Prompt tokens computed at a time: no gradient goes through the model, so many cost little memory."""
    validation: Path | None = None
    """More data, to measure on and not to learn from."""


@dataclass(frozen=True, kw_only=True)
class Duo(Training, AdapterOptions, Command, runs="winnow.cli.train_parts:duo"):
    """Train a gate for each KV head of a model, which itself stays as it is: what `--plan duo` chooses heads by."""

    recipe: Annotated[GatesRecipe, Parameter(name="*")] = field(default_factory=GatesRecipe)
    validation: Path | None = None
    """More data, to measure on and not to learn from."""


@dataclass(frozen=True, kw_only=True)
class Locret(Heads, Command, runs="winnow.cli.train_parts:locret"):
    """Train retaining heads for a model, which itself stays as it is: what `--plan locret` keeps units by."""


@dataclass(frozen=True, kw_only=True)
class KVzap(Heads, Command, runs="winnow.cli.train_parts:kvzap"):
    """Train heads that say what a model needs to repeat its text: what `--plan kvzap` keeps units by."""


@dataclass(frozen=True, kw_only=True)
class LoCoCo(Training, AdapterOptions, Command, runs="winnow.cli.train_parts:lococo"):
    """Train convolutions for a model, which itself stays as it is: what `--plan lococo` makes sums of units by."""

    recipe: Annotated[ConvolutionsRecipe, Parameter(name="*")] = field(default_factory=ConvolutionsRecipe)


@dataclass(frozen=True, kw_only=True)
class Indexer(Training, AdapterOptions, Command, runs="winnow.cli.train_parts:indexer"):
    """Train indexers for a model, which itself stays as it is: what `--plan indexer` reads units by."""

    recipe: Annotated[IndexersRecipe, Parameter(name="*")] = field(default_factory=IndexersRecipe)
    validation: Path | None = None
    """More data, to measure on and not to learn from."""


app.command(Speed, name="speed")
app.command(Locret, name="locret")
app.command(Duo, name="duo")
app.command(KVzap, name="kvzap")
app.command(LoCoCo, name="lococo")
app.command(Indexer, name="indexer")
