"""`winnow train locret` and `winnow train kvzap`, and what they make, from the command line."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import forked

QUICK = ("--width", 8, "--steps", 4, "--length", 100)


def test_heads_are_trained_and_used(winnow: Any, tiny: Path, data: Path, tmp_path: Path, document: Path) -> None:
    out = tmp_path / "heads"
    made = winnow("train", "locret", data, "-m", tiny, "--out", out, *QUICK, "--validation", data, "--bf16", "--json")
    assert made.code == 0
    assert made.json["command"] == "train locret"
    assert made.json["base"]["name"] == tiny.name
    assert (made.json["recipe"]["width"], made.json["recipe"]["steps"], made.json["recipe"]["bf16"]) == (8, 4, True)
    assert made.json["result"]["steps"] == 4
    assert 0 <= made.json["result"]["held_out"]["overlap"] <= 1
    assert made.json["out"] == str(out)
    assert "retaining_heads.safetensors" in made.json["files"]
    plan = f"locret(budget=64, heads='{out}')"
    ran = winnow("run", "--file", document, "-m", tiny, "--plan", plan, "--max-tokens", 2, "--json")
    assert (ran.code, ran.json["plan"]) == (0, plan)
    refused = winnow("run", "hello", "-m", "needle", "--plan", plan)
    assert refused.code == 2
    assert f"trained on {tiny.name}" in refused.err


def test_heads_for_a_threshold(winnow: Any, tiny: Path, data: Path, tmp_path: Path, document: Path) -> None:
    out = tmp_path / "heads"
    made = winnow("train", "kvzap", data, "-m", tiny, "--out", out, *QUICK, "--json")
    assert (made.code, made.json["command"], made.json["plan"]) == (0, "train kvzap", "kvzap")
    plan = f"kvzap(threshold=0.0, recent=16, heads='{out}')"
    ran = winnow("run", "--file", document, "-m", tiny, "--plan", plan, "--max-tokens", 2, "--json")
    assert (ran.code, ran.json["plan"]) == (0, plan)
    shown = winnow("train", "kvzap", data, "-m", tiny, "--out", tmp_path / "others", *QUICK)
    assert f"kvzap(threshold=-6, heads='{tmp_path / 'others'}')" in " ".join(shown.out.split())


def test_the_table_says_what_was_made_and_how_to_use_it(winnow: Any, tiny: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "heads"
    shown = winnow("train", "locret", data, "-m", tiny, "--out", out, *QUICK)
    assert shown.code == 0
    assert f"retaining heads for {tiny.name}" in shown.out
    assert "of the best tenth" in shown.out
    assert f"locret(budget=1024, heads='{out}')" in " ".join(shown.out.split())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--width", 0), "width=0 must be at least 1"),
        (("--steps", 1), "steps=1 must be at least 2"),
        (("--length", 1), "length=1 must be at least 2"),
        (("--learning-rate", -1), "learning_rate=-1.0 must be above 0"),
        (("--validate-every", 0), "validate_every=0"),
        (("--resume",), "there is no run to resume"),
        (("--validation", "missing.jsonl"), "cannot read missing.jsonl"),
        (("--model", "missing/model/dir"), "missing/model/dir is not a directory"),
    ],
)
def test_bad_input_is_one_line(
    flags: tuple[object, ...], message: str, winnow: Any, tiny: Path, data: Path, tmp_path: Path
) -> None:
    result = winnow("train", "locret", data, "-m", tiny, "--out", tmp_path / "out", *flags)
    assert result.code == 2
    assert result.err.startswith("error: ")
    assert message in result.err
    assert result.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_output_directory_must_be_empty(winnow: Any, tiny: Path, data: Path, tmp_path: Path) -> None:
    result = winnow("train", "locret", data, "-m", tiny, "--out", tmp_path)
    assert result.code == 2
    assert "is not empty" in result.err


def test_neither_peft_nor_accelerate_is_needed(tiny: Path, data: Path, tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['peft'] = sys.modules['accelerate'] = None\n"
        f"from winnow.cli.main import main; main({['train', 'locret', str(data), '-m', str(tiny)]!r} + sys.argv[1:])"
    )
    arguments = [sys.executable, "-c", script, "--out", str(tmp_path / "out"), *map(str, QUICK)]
    done = subprocess.run(arguments, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert (done.returncode, (tmp_path / "out" / "retaining_heads.safetensors").is_file()) == (0, True), done.stderr


def test_ctrl_c_keeps_the_last_checkpoint_and_says_how_to_go_on(
    winnow: Any, tiny: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    flags = ["train", "locret", data, "-m", tiny, "--out", out, *QUICK, "--steps", 100000, "--save-every", 5]
    process = forked.start(["-m", "winnow", *flags])
    while process.poll() is None and not list(out.glob("checkpoint-*/trainer_state.json")):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    last = err.splitlines()[-1]
    assert last.startswith("interrupted; go on from checkpoint-")
    assert last.endswith("with --resume")
    assert "Traceback" not in err
