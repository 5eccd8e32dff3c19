"""Records of the user's data directory: a file found by its name, its fields checked line by line."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from winnow.errors import InputError
from winnow.tasks.rows import existing_directory, read_rows

Record = Mapping[str, Any]


def has_file(directory: Path, name: str) -> bool:
    """Whether `find_file` finds it; `directory` exists."""
    return any(path.is_file() for path in _places(directory, name))


def find_file(directory: str | Path, name: str) -> Path:
    """The file called `name` in `directory` or in one of its folders.

    Raises:
        InputError: no such directory, or no such file in it.
    """
    folder = existing_directory(directory)
    if not has_file(folder, name):
        raise InputError(f"{folder} holds no {name}, nor does a folder in it; give the directory that does")
    return next(path for path in _places(folder, name) if path.is_file())


@cache
def records(
    directory: str | Path, name: str, wrong: Callable[[Record], str] = lambda record: "", **fields: type
) -> tuple[Record, ...]:
    """The records of the file called `name`; each has the `fields`, of the types given.

    wrong: says what else is wrong with a record, or nothing.
    Raises:
        InputError: no such file, no record in it, a field missing or of another type, or what `wrong` says; names file
            and line.
    """
    path = find_file(directory, name)
    found: list[Record] = []
    for row in read_rows(path):
        for key, kind in fields.items():
            if not isinstance(value := row[key], kind):
                raise row.error(f"{key!r} must be a {kind.__name__}, not {value!r:.60}")
        if told := wrong(row.record):
            raise row.error(told)
        found.append(row.record)
    if not found:
        raise InputError(f"{path} holds no record")
    return tuple(found)


def each_has(name: str, **fields: type) -> Callable[[Record], str]:
    """For `records`: the list `name` must not be empty, and hold objects with the `fields`, not empty either."""

    def wrong(record: Record) -> str:
        items = record[name]
        for key, kind in fields.items():
            if not items or not all(isinstance(each, dict) and each.get(key) for each in items):
                return f"{name!r} must be a list of objects, each with {' and '.join(fields)}"
            if other := [each[key] for each in items if not isinstance(each[key], kind)]:
                return f"{key!r} in {name!r} must be a {kind.__name__}, not {other[0]!r:.60}"
        return ""

    return wrong


def _places(directory: Path, name: str) -> list[Path]:
    return [directory / name, *sorted(directory.glob(f"*/{name}"))]
