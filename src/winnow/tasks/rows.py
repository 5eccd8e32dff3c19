"""JSON Lines of the user's data directory, row by row, each with the place that an error names."""

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.errors import InputError


@dataclass(frozen=True)
class Row:
    """A JSON object, and its file and line."""

    record: Mapping[str, Any]
    where: str

    def __getitem__(self, name: str) -> Any:
        """A field; InputError with the fields there are if it is missing."""
        if name not in self.record:
            raise self.error(f"no field {name!r}; the record has {', '.join(sorted(self.record))}")
        return self.record[name]

    def text(self, name: str) -> str:
        """A field; InputError where it is no text."""
        if not isinstance(value := self[name], str):
            raise self.error(f"{name!r} must be a text, not {value!r:.60}")
        return value

    def error(self, what: str) -> InputError:
        """What is wrong with the row, to be raised."""
        return InputError(f"{self.where}: {what}")


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a JSON Lines file, gzip-compressed if its name ends in .gz; lines are counted from 1.

    Raises InputError where the file cannot be read, or a line is not a JSON object; names the line.
    """
    open_file: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    try:
        with open_file(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise InputError(f"{path}, line {number}: expected a JSON object, got {type(record).__name__}")
                yield Row(record, f"{path}, line {number}")
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {number}: not JSON ({error.msg})") from error
    except (OSError, EOFError, UnicodeDecodeError) as error:
        kind = "gzip-compressed JSON Lines" if path.suffix == ".gz" else "JSON Lines"
        raise InputError(f"{path} cannot be read as {kind}: {error}") from error


def existing_directory(directory: str | Path) -> Path:
    """`directory` as a path; InputError if there is none."""
    folder = Path(directory)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a directory; give the directory that holds the task's data files")
    return folder
