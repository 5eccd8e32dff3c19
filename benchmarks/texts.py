"""Real texts for language modelling, by domain."""

from dataclasses import dataclass
from pathlib import Path

from winnow.errors import InputError
from winnow.tasks.rows import existing_directory
from winnow.tasks.sources import has_file, records

# Of each domain: its file, and the field that holds the text.
SOURCES = {
    "books": ("books.jsonl.gz", "text"),
    "essays": ("essays.jsonl.gz", "text"),
    "peps": ("peps.jsonl.gz", "text"),
    "wikitext": ("wikitext2_test.jsonl.gz", "text"),
    "shakespeare": ("tinyshakespeare.jsonl.gz", "text"),
    "meetings": ("qmsum_val.jsonl.gz", "document"),
}


@dataclass(frozen=True)
class Text:
    """One document: where it comes from, which it is, and what it says."""

    domain: str
    id: str
    text: str


def texts(directory: str | Path) -> list[Text]:
    """The documents of every domain whose file is in `directory` or in one of its folders, by domain.

    Raises:
        InputError: no directory, no file of any domain, or a malformed line; names file and line.
    """
    folder = existing_directory(directory)
    found: list[Text] = []
    for domain, (name, field) in SOURCES.items():
        if has_file(folder, name):
            # An id is a number in some files and a name in others.
            found += [Text(domain, str(r["id"]), r[field]) for r in records(folder, name, id=object, **{field: str})]
    if not found:
        names = ", ".join(name for name, _ in SOURCES.values())
        raise InputError(f"{folder} holds no text, nor does a folder in it; expected one of {names}")
    return found
