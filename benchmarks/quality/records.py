"""What was measured, a JSON line each, written as it comes: a run that is stopped goes on where it was."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from winnow.cli.terminal import writing
from winnow.errors import InputError

Record = dict[str, Any]
Key = tuple[object, ...]
KEYS = {  # what tells records of a kind from each other
    "answer": ("arm", "plan", "task", "length", "index"),
    "window": ("arm", "plan", "domain", "length", "index"),
    "refused": ("arm", "plan", "length"),
}
# Of a header: what may differ where a run goes on, a machine's versions excepted; a line says what it is from there on.
FREE = ("typed", "machine")
CONTINUED = "continued"  # the kind of such a line, and where a header that is read back has all of them


def key_of(record: Record) -> Key:
    """Which record it is, whoever made it."""
    kind = record["kind"]
    return kind, *(record[name] for name in KEYS[kind])


class Journal:
    """A file of records: the header first, then a line for each that is appended.

    A line that a killed run has not ended is cut off. Raises InputError where the file was begun with another header,
    but for the command and the machine, which may be another of the same versions.
    """

    def __init__(self, path: Path, header: Record) -> None:
        # As it comes back from the file: a tuple is a list there.
        self.path, self.header = path, json.loads(_line({"kind": "header", **header}))
        self.records: list[Record] = []
        if path.exists() and (whole := _whole_lines(path)):
            begun, *others = map(json.loads, whole)
            _check_same(path, begun, self.header)
            self.records = [each for each in others if each["kind"] in KEYS]
            self._replace(whole)
            before = [begun, *(each for each in others if each["kind"] == CONTINUED)][-1]
            now = {name: self.header[name] for name in FREE if name in self.header}
            if any(before.get(name) != value for name, value in now.items()):
                self._write({"kind": CONTINUED, **now})
        else:
            self._replace([])
            self._write(self.header)
        self._known = set(map(key_of, self.records))

    def __contains__(self, key: Key) -> bool:
        return key in self._known

    def append(self, record: Record) -> None:
        """Write a record, whole, before anything else is done."""
        self._write(record)
        self.records.append(record)
        self._known.add(key_of(record))

    def _write(self, record: Record) -> None:
        with writing(self.path), self.path.open("a", encoding="utf-8") as out:
            out.write(_line(record) + "\n")

    def _replace(self, lines: Sequence[str]) -> None:
        with writing(self.path):
            self.path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_journal(path: Path) -> tuple[Record, list[Record]]:
    """The header and the records of a file. Raises InputError where it is none."""
    try:
        header, *others = [json.loads(line) for line in _whole_lines(path)]
        if header["kind"] != "header":
            raise ValueError("no header")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} holds no records of `quality run`: {error}") from error
    if continued := [each for each in others if each["kind"] == CONTINUED]:
        header[CONTINUED] = continued
    return header, [each for each in others if each["kind"] in KEYS]


def merged(files: Sequence[tuple[Path, Record, list[Record]]], same: Sequence[str]) -> Iterator[Record]:
    """The records of several files, each once. same: what their headers have to agree in.

    Raises InputError where they do not, or where two have different records of the same question; one may be of
    code that counted less, and what both have counted has to agree.
    """
    first, header, _ = files[0]
    seen: dict[Key, Record] = {}
    for path, other, records in files:
        if different := [name for name in same if header.get(name) != other.get(name)]:
            name = different[0]
            raise InputError(
                f"{first} and {path} differ in {name}: {header.get(name)!r} and {other.get(name)!r}; "
                "merge what was measured alike"
            )
        for record in records:
            if (before := seen.setdefault(key_of(record), record)) is record:
                yield record
            elif not _agree(before, record):
                raise InputError(f"{path} has another record of {key_of(record)} than {first} or one after it")


def _agree(one: Record, other: Record) -> bool:
    costs, others = one.get("costs") or {}, other.get("costs") or {}
    shared = costs.keys() & others.keys()
    return {**one, "costs": None} == {**other, "costs": None} and all(costs[name] == others[name] for name in shared)


def _line(record: Record) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False, default=str)


def _whole_lines(path: Path) -> list[str]:
    """All but a last one that does not end."""
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def _check_same(path: Path, begun: Record, now: Record) -> None:
    was, found = _fixed(begun), _fixed(now)
    for name in was.keys() | found.keys():
        if was.get(name) != found.get(name):
            raise InputError(
                f"{path} was begun with {name}={was.get(name)!r:.200}, and this is {found.get(name)!r:.200}; "
                "go on as it was begun, or give another file"
            )


def _fixed(header: Record) -> Record:
    kept = {name: value for name, value in header.items() if name not in FREE}
    return {**kept, "the machine's versions": header.get("machine", {}).get("versions")}
