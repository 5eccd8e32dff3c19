"""The tables and the picture of the measurements: `python -m recipes.frontier.report DIR --json FILE --plot PNG`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from recipes.blocks.frontier import markdown
from recipes.reporting import Record

from .arms import VERBS, arms
from .picture import plot


def read(directory: Path) -> list[Record]:
    """The measurements of a run of `python -m recipes.frontier`, by length and verb, then in the order of the arms.

    number: of an arm that was measured, the same at all lengths, from 0 for full attention; None: refused everywhere.
    """
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(directory.glob("*.json"))]
    known = {arm.name: (VERBS.index(arm.verb), place, arm.verb) for place, arm in enumerate(arms())}
    mine = [record | {"verb": known[record["arm"]][2]} for record in found if record["arm"] in known]
    mine.sort(key=lambda record: known[record["arm"]])
    measured = dict.fromkeys(record["arm"] for record in mine if record["rows"])
    numbers = {arm: number for number, arm in enumerate(measured)}
    numbered = [record | {"number": numbers.get(record["arm"])} for record in mine]
    return sorted(numbered, key=lambda record: record["length"])


def main() -> None:
    """Parse the flags, print the tables, write what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m recipes.frontier.report", description=__doc__)
    parser.add_argument("directory", type=Path, help="the directory of a run")
    for name in ("--json", "--plot"):
        parser.add_argument(name, type=Path)
    flags = parser.parse_args()
    records = read(flags.directory)
    if not any(record["arm"] == "full" for record in records):
        parser.error(f"{flags.directory} holds no measurement of full attention; run python -m recipes.frontier first")
    if flags.json:
        flags.json.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    print(markdown(records), end="")
    if flags.plot:
        plot(records, flags.plot)


if __name__ == "__main__":
    main()
