"""Figures in pages: `python -m recipes.pages` writes every block of README.md and docs/ from the JSON in docs/results.

A block stands between two marks, `<!-- figures: NAME -->` and `<!-- /figures -->`; what NAME means is in
`recipes/blocks`. With --check nothing is written: blocks that differ are named, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from recipes.blocks import BLOCKS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
BEGIN, END = "<!-- figures: {} -->", "<!-- /figures -->"
BLOCK = re.compile(rf"{BEGIN.format('(.*?)')}\n(.*?){END}", re.DOTALL)


def pages() -> list[Path]:
    """Every page that may have blocks."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """The name of every block of a page, and what stands between its marks; raises ValueError where one has no end."""
    found = BLOCK.findall(text)
    marks = text.count(BEGIN.partition("{")[0]), text.count(END)
    if marks != (len(found), len(found)):
        raise ValueError(f"{marks[0]} blocks begin and {marks[1]} end; give every {BEGIN!r} one {END!r}, and nest none")
    yield from found


def body(name: str) -> str:
    """What belongs between the marks. Raises ValueError for a name that is not known, or without its JSON."""
    if name not in BLOCKS:
        raise ValueError(f"there is no block {name!r}; there are {', '.join(sorted(BLOCKS))}")
    block = BLOCKS[name]
    return f"\n{block.make(*map(document, block.files)).strip()}\n\n"


@cache
def document(name: str) -> Any:
    """A JSON file of docs/results."""
    path = RESULTS / name
    if not path.is_file():
        raise ValueError(f"docs/results/{name} is not there; python -m recipes.results --list names what makes it")
    return json.loads(path.read_text(encoding="utf-8"))


def stale(paths: Iterable[Path]) -> list[str]:
    """The blocks that differ from what the JSON files make of them, as `page: name`."""
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    return [f"{path.name}: {name}" for path, text in texts.items() for name, held in blocks(text) if held != body(name)]


def write(paths: Iterable[Path]) -> None:
    """Make every block of the pages anew; what stands around them stays."""
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if list(blocks(text)):
            path.write_text(BLOCK.sub(_made, text), encoding="utf-8")


def _made(found: re.Match[str]) -> str:
    return f"{BEGIN.format(found[1])}\n{body(found[1])}{END}"


def main() -> None:
    """Parse the flags, write or check."""
    parser = argparse.ArgumentParser(prog="python -m recipes.pages", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where a block differs")
    if not parser.parse_args().check:
        write(pages())
    elif differing := stale(pages()):
        print(*differing, "python -m recipes.pages makes them anew", sep="\n", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
