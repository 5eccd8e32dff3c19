"""`winnow import` and `winnow cache`: GGUF files converted on purpose, and those that loading has converted."""

from pathlib import Path
from typing import Annotated

import typer

from winnow.cli import options
from winnow.cli.terminal import console, converting, new_table, print_json, size, writing
from winnow.errors import InputError
from winnow.models.gguf.cache import cache_home, clear, entries
from winnow.models.gguf.load import import_gguf
from winnow.runtime.loading import gguf_file

cache = typer.Typer(no_args_is_help=False, rich_markup_mode=None)


def import_file(
    file: Annotated[str, typer.Argument(metavar="FILE", help='A .gguf file, or "smollm2".')],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty directory.")],
) -> None:
    """Convert a GGUF file into a model directory: give it as --model, here or on any other machine."""
    source = gguf_file(file)
    if source is None:
        raise InputError(f"{file} is not a .gguf file; other models are loaded as they are, with --model")
    directory = directory.absolute()
    _check_free(directory)
    with writing(directory), converting(source.name) as progress:
        import_gguf(source, directory, progress)
    print(f"wrote {directory} ({size(_bytes(directory))})")


@cache.callback(invoke_without_command=True)
def _cache(context: typer.Context) -> None:
    """Show or remove the GGUF files that were converted when they were first loaded."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@cache.command("list")
def list_entries(as_json: options.Json = False) -> None:
    """List the converted files."""
    home, found = cache_home(), entries()
    places = [str(entry.path.relative_to(home)) for entry in found]
    if as_json:
        kept = [
            {"name": entry.name, "bytes": entry.bytes, "path": path} for entry, path in zip(found, places, strict=True)
        ]
        print_json({"command": "cache list", "folder": str(home), "entries": kept})
        return
    if not found:
        print(f"{home} holds no converted files")
        return
    table = new_table(None, f"in {home}: {size(sum(entry.bytes for entry in found))}")
    table.add_column("file")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("path", overflow="fold")
    for entry, path in zip(found, places, strict=True):
        table.add_row(entry.name, size(entry.bytes), path)
    console().print(table)


@cache.command("clear")
def clear_entries() -> None:
    """Remove all converted files; what is loaded again is converted again."""
    home = cache_home()
    with writing(home):
        freed = clear()
    print(f"freed {size(freed)} in {home}")


def _check_free(directory: Path) -> None:
    """Raise InputError unless `directory` can be made: it is not there, or is there and empty."""
    with writing(directory):
        if not directory.exists() and not directory.is_symlink():
            return
        if not directory.is_dir() or directory.is_symlink():
            raise InputError(f"{directory} is no directory; give a new or empty one")
        if any(directory.iterdir()):
            raise InputError(f"{directory} is not empty; give a new or empty directory")


def _bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())
