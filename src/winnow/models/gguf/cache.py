"""Converted GGUF files in the user's cache folder, so that a file is converted once.

An entry is named by the SHA-256 of the file and the converter's format. What is known of a path (its size and time of
change, and the hash they had) lies beside the entries, so that an unchanged file is not read again to be hashed.
"""

import hashlib
import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.errors import InputError, ModelError
from winnow.models.files import replace_text
from winnow.models.gguf.directory import FORMAT, read_record

BLOCK = 1 << 22


def cache_home() -> Path:
    """`$WINNOW_CACHE`, else `winnow` in `$XDG_CACHE_HOME`, else in `~/.cache`."""
    if own := os.environ.get("WINNOW_CACHE"):
        return Path(own)
    xdg = os.environ.get("XDG_CACHE_HOME")
    if xdg and Path(xdg).is_absolute():
        return Path(xdg) / "winnow"
    try:
        return Path.home() / ".cache" / "winnow"
    except RuntimeError as error:  # no HOME, and a user without an entry
        raise InputError(f"where converted files are to be kept is not known ({error}); set WINNOW_CACHE") from error


def entry_of(path: Path) -> Path:
    """Where the converted file lies, or will. Raises OSError where the file cannot be read."""
    return cache_home() / "gguf" / f"{content_hash(path)}-{FORMAT}"


def content_hash(path: Path) -> str:
    """The SHA-256 of a file, from what was noted of it if it has not changed since."""
    status = path.stat()
    facts = {"size": status.st_size, "changed_ns": status.st_mtime_ns, "inode": status.st_ino}
    note = cache_home() / "paths" / (hashlib.sha256(os.fsencode(path.resolve())).hexdigest() + ".json")
    try:
        known = json.loads(note.read_text(encoding="utf-8"))
        if all(known[key] == value for key, value in facts.items()):
            return str(known["sha256"])
    except (OSError, ValueError, LookupError, TypeError):
        pass  # nothing noted, or not legible: it is hashed
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    _note(note, {**facts, "sha256": digest.hexdigest()})
    return digest.hexdigest()


def _note(path: Path, record: dict[str, Any]) -> None:
    """Write it whole, or not at all where the folder cannot be written."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(record))


@dataclass(frozen=True)
class Entry:
    """One converted file: the name that the GGUF file had, and the bytes that the entry takes."""

    path: Path
    name: str
    bytes: int


def entries() -> list[Entry]:
    """Every converted file, and what is left of damaged ones, by name."""
    found = []
    for path in sorted((cache_home() / "gguf").glob("*")):
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        try:
            name = str(read_record(path)["source"]["name"])
        except (ModelError, LookupError, TypeError):
            name = "damaged or unfinished"
        found.append(Entry(path, name, size))
    return sorted(found, key=lambda entry: entry.name)


def clear() -> int:
    """Remove everything that is cached; returns the bytes given back. Raises OSError where that is not allowed."""
    freed = sum(entry.bytes for entry in entries())
    for part in ("gguf", "paths"):
        if (folder := cache_home() / part).is_dir():
            shutil.rmtree(folder)
    return freed
