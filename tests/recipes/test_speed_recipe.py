"""The recipe of the SPEED sweep, end to end with one arm on a tiny corpus, and its report."""

import json
import lzma
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
arms = pytest.importorskip("recipes.speed.arms")
from recipes.speed import data, rate, report, run  # noqa: E402

from winnow import LLM  # noqa: E402
from winnow.tasks.haystack import bundled_haystack  # noqa: E402


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The output directory of a run with the training data written."""
    folder = tmp_path_factory.mktemp("speed")
    with lzma.open(folder / "books.txt.xz", "wt") as file:
        file.write("".join(bundled_haystack().sentences[:400]) + "\n<|endoftext|>\n")
    data.write_data(folder, folder / "train.jsonl", LLM("needle").tokenizer, conversations=3, seed=0)
    return folder


def test_data_is_reproducible_and_every_turn_is_answered(out, tmp_path):
    data.write_data(out, tmp_path / "again.jsonl", LLM("needle").tokenizer, conversations=3, seed=0)
    text = (out / "train.jsonl").read_text()
    assert (tmp_path / "again.jsonl").read_text() == text
    for line in text.splitlines():
        roles = [message["role"] for message in json.loads(line)["messages"]]
        assert roles == ["user", "assistant"] * (len(roles) // 2)


def test_the_sweep_is_the_whole_grid():
    made = arms.arms()
    assert len({arm.name for arm in made}) == len(made) == 2 + 16 + 3 + 1 + 14
    grid = {(arm.cutoff, arm.anchors, arm.training) for arm in made}
    for training in ("post hoc", "lora", "full"):
        assert {(k, anchors, training) for k in (4, 5, 6, 7) for anchors in ("bos", "none")} <= grid
        assert (8, "bos", training) in grid
    assert len({arm.recipe.seed for arm in made if arm.recipe}) == 1  # the same batches in the same order


def test_the_rate_of_training_is_measured(out, tmp_path, monkeypatch):
    monkeypatch.setattr(rate, "CUTOFFS", (8, 6))
    into = tmp_path / "rates.json"
    flags = ["--out", str(into), "--steps", "1", "--turns", "2", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["rate", str(out / "train.jsonl"), *flags])
    rate.main()
    rates = json.loads(into.read_text())["tokens_per_second"]
    assert set(rates) == {"8", "6"}
    assert all(len(each) == 2 and min(each) > 0 for each in rates.values())


def test_an_arm_is_trained_measured_and_not_done_twice(out, monkeypatch):
    monkeypatch.setattr(run, "TASKS", ("passkey",))
    monkeypatch.setattr(run, "DEPTHS", (0.5,))
    arm = arms.Arm(6, "bos", "lora")
    file = run.run_arm(arm, out, 256, 1, 1)
    record = json.loads(file.read_text())
    assert record["trained"]["plan"].startswith("speed(cutoff=6, anchors='bos'")
    assert record["plan"] == record["accuracy"][0]["plan"] == "speed(cutoff=6, anchors='bos')"
    assert record["rows_computed"] < record["rows_full"]
    before = file.stat().st_mtime_ns
    assert run.run_arm(arm, out, 256, 1, 1).stat().st_mtime_ns == before
    [read] = report.read(file.parent)
    assert set(read["trained"]) == {"plan", "base", "recipe", "data", "result"}


def test_the_report_shows_every_arm(tmp_path):
    def record(training, anchors, cutoff, score):
        accuracy = [{"task": "kv", "score": score}, {"task": "variables", "score": score / 2}]
        return {
            "training": training, "anchors": anchors, "cutoff": cutoff, "mean": 0.75 * score, "accuracy": accuracy,
            "loop_rate": 0.1, "rows_computed": cutoff, "rows_full": 8, "trained": None,
        }  # fmt: skip

    records = [
        record("post hoc", "bos", 4, 0.5),
        record("post hoc", "none", 4, 0.25),
        record("post hoc", "bos", 8, 1.0),
    ]
    for index, each in enumerate(records):
        (tmp_path / f"{index}.json").write_text(json.dumps(each))
    text = report.markdown(report.read(tmp_path))
    assert "| not trained | first token | 37.5 | 75.0 |" in text
    assert "| not trained | no anchor | 18.8 | 75.0 |" in text
    assert "| not trained | - | 8 | 100.0 | 100.0 | 50.0 | 75.0 | 10.0 |" in text
    report.plot(report.read(tmp_path), tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").stat().st_size > 10_000
