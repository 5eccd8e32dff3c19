"""`winnow plans`, `import`, `cache` and `inspect-model`: what there is."""

from dataclasses import dataclass, field
from pathlib import Path

from winnow.cli.command import Command
from winnow.cli.main import COMMANDS, new_app
from winnow.cli.options import AdapterOptions, JsonOptions

app = new_app("cache", COMMANDS["cache"][1])


@dataclass(frozen=True, kw_only=True)
class Plans(JsonOptions, Command, runs="winnow.cli.plans:plans"):
    """List the policies that plans are made of: one per verb, joined by +."""

    name: str | None = field(default=None, kw_only=False)
    """Show all there is to say about one."""


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


app.command(CacheList, name="list")
app.command(CacheClear, name="clear")
