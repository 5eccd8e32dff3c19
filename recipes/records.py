"""What a recipe has measured of one arm: a file, whole or not there, so that a stopped run can go on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def read_record(file: Path) -> Record | None:
    """None where it was not written yet."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def write_record(file: Path, record: Record) -> None:
    """Put it in place at once, in a directory that is made where it is missing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    os.replace(part, file)
