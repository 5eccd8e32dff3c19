"""The command line that the reports of recipes share."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def write_report(
    recipe: str,
    description: str | None,
    read: Callable[[Path], list[Record]],
    markdown: Callable[[list[Record]], str],
    plot: Callable[[list[Record], Path], None],
) -> None:
    """Parse the flags, write what was asked for. recipe: the module whose measurements these are."""
    parser = argparse.ArgumentParser(prog=f"python -m {recipe}.report", description=description)
    parser.add_argument("directory", type=Path, help="what a run has left")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--plot", type=Path)
    flags = parser.parse_args()
    records = read(flags.directory)
    if not records:
        parser.error(f"{flags.directory} holds no measurements; run python -m {recipe} first")
    if flags.json:
        flags.json.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    if flags.markdown:
        flags.markdown.write_text(markdown(records), encoding="utf-8")
    else:
        print(markdown(records), end="")
    if flags.plot:
        plot(records, flags.plot)
