"""`winnow plans`, `import`, `cache` and `inspect-model`: what there is."""

from dataclasses import dataclass, field
from pathlib import Path

from winnow.cli.main import COMMANDS, new_app
from winnow.cli.options import AdapterOptions, JsonOptions

app = new_app("cache", COMMANDS["cache"][1])


@dataclass(frozen=True, kw_only=True)
class Plans(JsonOptions):
    """List the policies that plans are made of: one per verb, joined by +."""

    name: str | None = field(default=None, kw_only=False)
    """Show all there is to say about one."""

    def __call__(self) -> int:
        from winnow.cli.plans import plans

        return plans(self)


@dataclass(frozen=True, kw_only=True)
class Import:
    """Convert a GGUF file into a model directory: give it as --model, here or on any other machine."""

    file: str = field(kw_only=False)
    """A .gguf file, or "smollm2"."""
    directory: Path = field(kw_only=False)
    """A new or empty directory."""

    def __call__(self) -> int:
        from winnow.cli.converted import import_file

        return import_file(self)


@dataclass(frozen=True, kw_only=True)
class CacheList(JsonOptions):
    """List the converted files."""

    def __call__(self) -> int:
        from winnow.cli.converted import list_entries

        return list_entries(self)


@dataclass(frozen=True, kw_only=True)
class CacheClear:
    """Remove all converted files; what is loaded again is converted again."""

    def __call__(self) -> int:
        from winnow.cli.converted import clear_entries

        return clear_entries()


@dataclass(frozen=True, kw_only=True)
class InspectModel(AdapterOptions, JsonOptions):
    """Show what a model is, and how its weights are held: in which form, in how many bytes, by which kernel."""

    def __call__(self) -> int:
        from winnow.cli.inspect_model import inspect_model

        return inspect_model(self)


app.command(CacheList, name="list")
app.command(CacheClear, name="clear")
