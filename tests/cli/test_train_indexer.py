"""`winnow train indexer`, and what it makes, from the command line."""

from pathlib import Path
from typing import Any

import pytest

QUICK = ("--heads", 2, "--dim", 8, "--rows", 20, "--length", 100)


def test_indexers_are_trained_and_used(winnow: Any, tiny: Path, data: Path, tmp_path: Path, document: Path) -> None:
    out = tmp_path / "made"
    flags = (*QUICK, "--steps", 3, "--validation", data, "--json")
    made = winnow("train", "indexer", data, "-m", tiny, "--out", out, *flags)
    assert made.code == 0, made.err
    assert (made.json["command"], made.json["base"]["name"]) == ("train indexer", tiny.name)
    assert (made.json["recipe"]["heads"], made.json["recipe"]["dim"]) == (2, 8)
    assert 0 < made.json["result"]["held_out"]["mass"] <= 1
    assert "indexers.safetensors" in made.json["files"]
    plan = f"indexer(budget=16, recent=4, trained='{out}')"
    ran = winnow("run", "--file", document, "-m", tiny, "--plan", plan, "--max-tokens", 2, "--json")
    assert (ran.code, ran.json["plan"]) == (0, plan)
    refused = winnow("run", "hello", "-m", "needle", "--plan", plan)
    assert refused.code == 2
    assert f"trained on {tiny.name}" in refused.err


def test_the_table_says_what_was_made_and_how_to_use_it(winnow: Any, tiny: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "made"
    shown = winnow("train", "indexer", data, "-m", tiny, "--out", out, *QUICK, "--steps", 2)
    assert shown.code == 0, shown.err
    assert f"indexers for {tiny.name}" in shown.out
    assert f"indexer(trained='{out}')" in " ".join(shown.out.split())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--steps", 1), "steps=1 must be at least 2"),
        (("--dim", 999), "dim=999 is more than the model's head_dim"),
        (("--dim", 8, "--resume"), "there is no run to resume"),
    ],
)
def test_bad_options_are_refused(winnow: Any, tiny: Path, data: Path, tmp_path: Path, flags: Any, message: str) -> None:
    refused = winnow("train", "indexer", data, "-m", tiny, "--out", tmp_path / "made", *flags)
    assert refused.code == 2
    assert message in refused.err
