"""`winnow plans`, `import`, `cache`, `inspect-model` and `fit`: what there is, and what it takes."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from winnow.cli.command import Command
from winnow.cli.main import COMMANDS, new_app
from winnow.cli.options import AdapterOptions, AtLeast1, HeldOptions, JsonOptions, OutOptions, PlansOptions

app = new_app("cache", COMMANDS["cache"][1])


@dataclass(frozen=True, kw_only=True)
class Plans(JsonOptions, Command, runs="winnow.cli.plans:plans"):
    """List the policies that plans are made of: one per verb, joined by +."""

    name: str | None = field(default=None, kw_only=False)
    """Show all there is to say about one."""
    from_: Annotated[str | None, Parameter(name="--from")] = None
    """The plan of one of kvpress's presses, like "SnapKVPress(0.75)", for a prompt of --length tokens."""
    length: Annotated[AtLeast1 | None, Parameter(alias="-l")] = None
    """With --from: tokens of the prompt, of which a press removes a share."""


@dataclass(frozen=True, kw_only=True)
class Import(Command, runs="winnow.cli.converted:import_file"):
    """Convert a GGUF file into a model directory: give it as --model, here or on any other machine."""

    file: str = field(kw_only=False)
    """A .gguf file, or "smollm2"."""
    directory: Path = field(kw_only=False)
    """A new or empty directory."""


@dataclass(frozen=True, kw_only=True)
class CacheList(JsonOptions, Command, runs="winnow.cli.converted:list_entries"):
    """List the converted files."""


@dataclass(frozen=True, kw_only=True)
class CacheClear(Command, runs="winnow.cli.converted:clear_entries"):
    """Remove all converted files; what is loaded again is converted again."""


@dataclass(frozen=True, kw_only=True)
class InspectModel(AdapterOptions, JsonOptions, Command, runs="winnow.cli.inspect_model:inspect_model"):
    """Show what a model is, and how its weights are held: in which form, in how many bytes, by which kernel."""


@dataclass(frozen=True, kw_only=True)
class Fit(PlansOptions, HeldOptions, OutOptions, Command, runs="winnow.cli.fit:fit"):
    """Say what memory a text takes under plans on a CPU, and how long a text fits; no weights are read."""

    length: Annotated[AtLeast1, Parameter(alias="-l")]
    """Tokens of the prompt."""
    new: AtLeast1 = 128
    """Tokens of the answer."""
    memory: Annotated[float | None, Parameter(validator=Number(gt=0))] = None
    """In GiB. Default: what this machine has available."""


app.command(CacheList, name="list")
app.command(CacheClear, name="clear")
