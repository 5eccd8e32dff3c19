"""The tables and the picture of the measurements: `python -m recipes.slowfast.report DIR --json FILE --markdown FILE
--plot PNG`."""

from __future__ import annotations

import json
from pathlib import Path

from recipes.blocks.slowfast import markdown
from recipes.reporting import Record, write_report

from .arms import TASKS, arms
from .picture import plot


def read(directory: Path) -> list[Record]:
    """The measurements of `python -m recipes.slowfast --out DIR`, in the order of arms, lengths and tasks."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(directory.glob("*.json"))]
    known, tasks = {arm.name: (place, arm) for place, arm in enumerate(arms())}, list(TASKS)
    mine = [record for record in found if record["arm"] in known]
    for record in mine:
        arm = known[record["arm"]][1]
        record |= {"group": arm.group, "share": arm.share}
    return sorted(mine, key=lambda r: (known[r["arm"]][0], r["length"], tasks.index(r["task"])))


if __name__ == "__main__":
    write_report("recipes.slowfast", __doc__, read, markdown, plot)
