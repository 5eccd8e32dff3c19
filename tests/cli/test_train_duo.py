"""`winnow train duo`, and what it makes, from the command line."""

from pathlib import Path
from typing import Any

import pytest


def test_gates_are_trained_and_used(winnow: Any, tiny: Path, data: Path, tmp_path: Path, document: Path) -> None:
    out = tmp_path / "gates"
    flags = ("--steps", 4, "--sink", 2, "--recent", 8, "--validation", data, "--json")
    made = winnow("train", "duo", data, "-m", tiny, "--out", out, *flags)
    assert made.code == 0, made.err
    assert made.json["command"] == "train duo"
    assert (made.json["recipe"]["steps"], made.json["recipe"]["recent"]) == (4, 8)
    assert made.json["files"] == ["head_gates.json", "log.jsonl", "winnow.json"]
    assert made.json["result"]["held_out"]["distance"] >= 0
    plan = f"duo(gates='{out}', sink=2, recent=32)"
    ran = winnow("run", "--file", document, "-m", tiny, "--plan", plan, "--max-tokens", 2, "--json")
    assert (ran.code, ran.json["plan"]) == (0, plan)
    refused = winnow("run", "hello", "-m", "needle", "--plan", plan)
    assert refused.code == 2
    assert f"trained on {tiny.name}" in refused.err


def test_the_table_says_what_was_made_and_how_to_use_it(winnow: Any, tiny: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "gates"
    shown = winnow("train", "duo", data, "-m", tiny, "--out", out, "--steps", 2, "--sink", 2, "--recent", 8)
    assert shown.code == 0, shown.err
    assert f"gates of the heads of {tiny.name}" in shown.out
    assert f"duo(sink=2, recent=8, gates='{out}')" in " ".join(shown.out.split())


@pytest.mark.parametrize(
    ("flags", "message"),
    [(("--steps", 1), "steps=1 must be at least 2"), (("--recent", 0), "recent=0 must be at least")],
)
def test_bad_options_are_refused(winnow: Any, tiny: Path, data: Path, tmp_path: Path, flags: Any, message: str) -> None:
    refused = winnow("train", "duo", data, "-m", tiny, "--out", tmp_path / "gates", *flags)
    assert refused.code == 2
    assert message in refused.err
