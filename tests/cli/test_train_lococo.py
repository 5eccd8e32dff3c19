"""`winnow train lococo`, and what it makes, from the command line."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

import forked
from learning import write

QUICK = ("--budget", 16, "--sums", 8, "--chunk", 20, "--kernel", 5, "--length", 100, "--accumulate", 2)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [{"prompt": f"What is {n} plus one? " * 4, "answer": f"{n + 1}"} for n in range(5)]
    return write(tmp_path / "data.jsonl", rows)


def test_convolutions_are_trained_and_used(winnow: Any, tiny: Path, data: Path, tmp_path: Path, document: Path) -> None:
    out = tmp_path / "made"
    made = winnow("train", "lococo", data, "-m", tiny, "--out", out, *QUICK, "--steps", 3, "--json")
    assert made.code == 0
    assert (made.json["command"], made.json["base"]["name"]) == ("train lococo", tiny.name)
    assert (made.json["recipe"]["budget"], made.json["recipe"]["sums"]) == (16, 8)
    assert made.json["result"]["steps"] == 3
    assert "convolutions.safetensors" in made.json["files"]
    plan = f"lococo(budget=16, chunk=20, convolutions='{out}')"
    ran = winnow("run", "--file", document, "-m", tiny, "--plan", plan, "--max-tokens", 2, "--json")
    assert (ran.code, ran.json["plan"]) == (0, plan)
    refused = winnow("run", "hello", "-m", "needle", "--plan", plan)
    assert refused.code == 2
    assert f"trained on {tiny.name}" in refused.err


def test_the_table_says_what_was_made_and_how_to_use_it(winnow: Any, tiny: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "made"
    shown = winnow("train", "lococo", data, "-m", tiny, "--out", out, *QUICK, "--steps", 2)
    assert shown.code == 0
    assert f"convolutions for {tiny.name}" in shown.out
    assert f"lococo(budget=16, chunk=20, convolutions='{out}')" in " ".join(shown.out.split())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--kernel", 4), "kernel=4 must be odd"),
        (("--sums", 16), "sums=16 must be below budget=16"),
        (("--length", 30), "of no text the first length=30 tokens are 42"),
        (("--steps", 1), "steps=1 must be at least 2"),
        (("--learning-rate", 0), "learning_rate=0.0 must be above 0"),
        (("--resume",), "there is no run to resume"),
        (("--weights", "int4"), "packed weights have no gradients"),
    ],
)
def test_bad_input_is_one_line(
    flags: tuple[object, ...], message: str, winnow: Any, tiny: Path, data: Path, tmp_path: Path
) -> None:
    result = winnow("train", "lococo", data, "-m", tiny, "--out", tmp_path / "out", *QUICK, *flags)
    assert result.code == 2
    assert result.err.startswith("error: ")
    assert message in result.err
    assert result.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_run_that_was_killed_is_gone_on_with(winnow: Any, tiny: Path, data: Path, tmp_path: Path) -> None:
    out, flags = tmp_path / "out", [*QUICK, "--steps", 500, "--save-every", 2]
    process = forked.start(["-m", "winnow", "train", "lococo", data, "-m", tiny, "--out", out, *flags])
    while process.poll() is None and not list(out.glob("checkpoint-*/trainer_state.json")):
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=60)
    other = winnow("train", "lococo", data, "-m", tiny, "--out", out, *flags, "--sums", 7, "--resume")
    assert "sums 8 before, 7 now" in other.err
    journal = json.loads(next(out.glob("checkpoint-*/trainer_state.json")).read_text(encoding="utf-8"))
    assert 0 < journal["step"] < 500
    assert len(journal["lines"]) == journal["step"]
