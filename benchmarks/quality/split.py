"""Which texts and records belong to validation and which to test: a fixed rule, so that nothing is in both.

- Documents of the domains, articles, questions and messages: by their place in the file, counted from 0; even ones are
  validation, odd ones test; but a document that repeats more than a tenth of the paragraphs of one before it, as a
  later version does, goes where that is. A file of a single document is cut at the paragraph nearest to its middle.
- Passages: by a hash of their title, so that passages of one page stay together. A question goes with the passage that
  answers it, and loses the distractors of the other side.
- Generated questions: `form` 0 of a task (wording, keys) is validation, 1 is test. Seed s draws as 2 s and as 2 s + 1.
"""

import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from benchmarks.texts import SOURCES
from winnow.errors import InputError
from winnow.tasks.rows import Row, existing_directory, read_rows
from winnow.tasks.sources import find_file, has_file

Split = Literal["validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
Record = Mapping[str, Any]
Halves = Iterator[tuple[int, Record]]  # each record with its side: a place in SPLITS
HAYSTACK, FILLERS = "haystack", ("books", "essays")  # the folder of the texts that needles are hidden in, their domains
PASSAGES, QUESTIONS = "passages.jsonl.gz", "nq_questions.jsonl.gz"
RECORDS = ("hotpotqa_100.jsonl.gz", "covid_qa.jsonl.gz", "banking77_train.jsonl.gz", "banking77_test.jsonl.gz")
TELLING = 120  # characters of a paragraph that nobody writes twice
SHARED = 0.1  # of the paragraphs of a text: one that has more in common with another is a version of it
_PARAGRAPH = re.compile(r"\n\s*\n")


def side_of(split: Split) -> int:
    """0 for validation and 1 for test: the form of generated tasks, and what is added to twice the seed."""
    return SPLITS.index(split)


def write_split(data: Path, split: Split, folder: Path) -> None:
    """Write the split's part of every file that is known in the directory `data`, or in one of its folders.

    The files have the names that tasks and domains look for, those of `FILLERS` in the folder `HAYSTACK`.
    Raises InputError where there is no directory, none of the files, or a file is malformed.
    """
    source, side = existing_directory(data), side_of(split)
    known = [name for name in _rules() if has_file(source, name)]
    if not known:
        raise InputError(f"{source} holds none of the files that are split: {', '.join(_rules())}")
    fillers = {SOURCES[domain][0] for domain in FILLERS}
    for name in known:
        place = folder / HAYSTACK / name if name in fillers else folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(place, "wt", compresslevel=1, encoding="utf-8") as out:
            out.writelines(json.dumps(record) + "\n" for of, record in _rules()[name](source, name) if of == side)


def _rules() -> dict[str, Callable[[Path, str], Halves]]:
    """By file."""
    documents = {name: _documents(field) for name, field in SOURCES.values()}
    return {**documents, **dict.fromkeys(RECORDS, _by_place), PASSAGES: _by_title, QUESTIONS: _by_passage}


def _read(source: Path, name: str) -> list[Row]:
    return list(read_rows(find_file(source, name)))


def _by_place(source: Path, name: str) -> Halves:
    return ((place % 2, row.record) for place, row in enumerate(_read(source, name)))


def _documents(field: str) -> Callable[[Path, str], Halves]:
    """By place, or the two parts of a single document whose text is `field`."""

    def halves(source: Path, name: str) -> Halves:
        found = _read(source, name)
        if len(found) != 1:
            yield from zip(_sides([row.text(field) for row in found]), (row.record for row in found), strict=True)
            return
        [whole] = found
        for side, part in enumerate(_cut(whole.text(field))):
            yield side, {**whole.record, "id": f"{whole['id']}, part {side + 1}", field: part}

    return halves


def _sides(texts: Sequence[str]) -> list[int]:
    """By place, but that a later version of a text goes where that is."""
    known: list[set[str]] = []
    sides: list[int] = []
    for place, text in enumerate(texts):
        said = {part for part in map(str.strip, _PARAGRAPH.split(text)) if len(part) >= TELLING}
        alike = (side for side, other in zip(sides, known, strict=True) if len(said & other) > SHARED * len(said))
        sides.append(next(alike, place % 2))
        known.append(said)
    return sides


def _cut(text: str) -> tuple[str, str]:
    """Both parts of a text, cut between two paragraphs."""
    breaks: Sequence[re.Match[str]] = list(_PARAGRAPH.finditer(text))
    if not breaks:
        raise InputError("a text that is the only one of its file has no two paragraphs, so it cannot be cut in two")
    middle = min(breaks, key=lambda each: abs(each.start() - len(text) // 2))
    return text[: middle.start()], text[middle.end() :]


def _side_of_title(title: str) -> int:
    return hashlib.sha256(title.encode()).digest()[0] % 2


def _by_title(source: Path, name: str) -> Halves:
    return ((_side_of_title(row.text("title")), row.record) for row in _read(source, name))


def _by_passage(source: Path, name: str) -> Halves:
    sides = {record["id"]: side for side, record in _by_title(source, PASSAGES)}
    for row in _read(source, name):
        if unknown := [each for each in (row["gold_passage_id"], *row["distractor_ids"]) if each not in sides]:
            raise row.error(f"{PASSAGES} has no passage {unknown[0]}")
        side = sides[row["gold_passage_id"]]
        near = [each for each in row["distractor_ids"] if sides[each] == side]
        yield side, {**row.record, "distractor_ids": near}
