"""What the README says of the four papers' methods rests on a hundred questions a row, and SPEED's on its control."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from recipes.blocks import methods  # noqa: E402


def read(name):
    return json.loads((ROOT / "docs" / "results" / name).read_text(encoding="utf-8"))


def test_every_row_has_a_hundred_questions_and_its_own_run():
    shown = methods.methods(*map(read, (*methods.FILES, methods.CONTROLLED)))
    for method, _, arm, file in methods.METHODS:
        told = read(file)
        row = next(row for row in told["scores"] if (row["arm"], row["task"]) == (arm, "all"))
        line = next(line for line in shown.splitlines() if line.startswith(f"| [{method}]"))
        assert row["questions"] >= 100
        assert f"| {row['questions']} | {100 * row['score']:.0f} |" in line
        beside = methods.CONTROLLED if method == "SPEED" else file
        lost = next(row for row in read(beside)["scores"] if (row["arm"], row["task"]) == (arm, "all"))["difference"]
        assert f"| {100 * lost['mean']:+.0f} ({100 * lost['low']:+.0f} to {100 * lost['high']:+.0f}) |" in line
    assert read(methods.CONTROLLED)["against"] == methods.CONTROL
