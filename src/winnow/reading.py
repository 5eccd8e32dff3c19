"""Text from the user's files and pipes: bounded, UTF-8, and with a line number for what cannot be used."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from winnow.errors import CapacityError, InputError

TOKEN_BYTES = 512  # of a text for each of a model's positions: far more than any text has, and it is not tokenised
TEXT_BYTES = 2**26  # of one text: 16 million tokens of English
LINES_BYTES = 2**30  # of a file of many texts
PIECE = 2**20  # bytes read at a time


def read_text(path: Path, limit: int = TEXT_BYTES) -> str:
    """The text of a UTF-8 file.

    Raises InputError where it cannot be read, is longer than `limit` bytes (a device may have no end) or no UTF-8.
    """
    try:
        with path.open("rb") as file:
            return read_stream(file, str(path), limit)
    except OSError as error:
        raise InputError(f"cannot read {str(path)[:200]}: {error.strerror}") from error


def read_stream(file: BinaryIO, name: str, limit: int = TEXT_BYTES) -> str:
    """The same of what is open already. name: of it, for messages."""
    pieces, left = [], limit
    while left >= 0 and (piece := file.read(min(left + 1, PIECE))):  # never more memory than there is text
        pieces.append(piece)
        left -= len(piece)
    if left < 0:
        raise InputError(f"{name} holds more than {limit:,} bytes; cut it, or split it into several")
    return decode(b"".join(pieces), name)


def decode(raw: bytes, name: str) -> str:
    """UTF-8 as text, without the mark that some editors begin it with. Raises InputError naming the first byte that is
    none."""
    try:
        return raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 text (byte {error.start}); convert it first") from error


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Each line of JSON in a file that is not blank, and where it stands. Raises InputError where one is no JSON."""
    return parse_lines(read_text(path, LINES_BYTES), str(path))


def parse_lines(text: str, name: str) -> Iterator[tuple[str, Any]]:
    """The same of text that was read. name: of the file, for messages."""
    # Lines end with a line feed alone: what else Unicode counts as one may stand inside a JSON string.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{name}, line {number}"
            try:
                yield where, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where} is not JSON ({error}); write one object a line") from error


def check_text(text: str, name: str) -> None:
    """Raise InputError where a string is no text: half of a surrogate pair, which no encoding has."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} holds {text[error.start]!r} (character {error.start}), half of a character and no text; remove it"
        ) from error


def check_length(text: str, name: str, positions: int) -> None:
    """Raise CapacityError where a text is far too long for a model's positions, before it is tokenised."""
    most = TOKEN_BYTES * positions
    if len(text) > most:
        raise CapacityError(
            f"{name} has {len(text):,} characters, and the model {positions:,} positions; give it at most {most:,} "
            "characters"
        )
