"""`winnow import` and `winnow cache`: GGUF files converted on purpose, and those that loading has converted."""

from pathlib import Path
from typing import Any

from winnow.cli.commands.models import CacheClear, CacheList, Import
from winnow.cli.deliver import Record, deliver
from winnow.cli.tables import Column, table_of
from winnow.cli.terminal import converting, size
from winnow.errors import InputError, writing
from winnow.models.gguf.cache import cache_home, clear, entries
from winnow.models.gguf.load import import_gguf
from winnow.runtime.loading import gguf_file


def import_file(options: Import) -> int:
    """Convert a GGUF file into a directory; returns the exit code."""
    source = gguf_file(options.file)
    if source is None:
        raise InputError(f"{options.file} is not a .gguf file; other models are loaded as they are, with --model")
    directory = options.directory.absolute()
    _check_free(directory)
    with writing(directory), converting(source.name) as meter:
        import_gguf(source, directory, meter.advance)
    print(f"wrote {directory} ({size(_bytes(directory))})")
    return 0


def list_entries(options: CacheList) -> int:
    """Print the converted files; returns the exit code."""
    home, found = cache_home(), entries()
    kept: list[dict[str, Any]] = [
        {"name": each.name, "bytes": each.bytes, "path": str(each.path.relative_to(home))} for each in found
    ]
    figures = {"folder": str(home), "entries": kept}
    if not found:
        return deliver(Record("cache list", figures, f"{home} holds no converted files"), options)
    names = {"file": lambda each: each["name"], "path": lambda each: each["path"]}
    note = f"in {home}: {size(sum(entry.bytes for entry in found))}"
    table = table_of(kept, names, [Column("size", lambda each: size(each["bytes"]))], note=note)
    return deliver(Record("cache list", figures, table), options)


def clear_entries(options: CacheClear) -> int:
    """Remove all converted files; returns the exit code."""
    home = cache_home()
    with writing(home):
        freed = clear()
    print(f"freed {size(freed)} in {home}")
    return 0


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
