"""`winnow train speed`, and what it makes, from the command line."""

import signal
import time
from pathlib import Path
from typing import Any

import pytest

import forked
from winnow.cli.commands.train import app
from winnow.cli.train_plot import training_figure

QUICK = ("--cutoff", 1, "--steps", 3, "--batch", 2, "--lora.rank", 4)


def test_an_adapter_is_trained_and_used(winnow: Any, tiny: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "adapter"
    made = winnow("train", "speed", data, "-m", tiny, "--out", out, *QUICK, "--json")
    assert made.code == 0
    assert made.json["command"] == "train speed"
    assert made.json["plan"] == "speed(cutoff=1, anchors='bos', decode_from='header', self_only=False)"
    assert made.json["result"]["steps"] == 3
    assert made.json["recipe"]["lora"] == {"rank": 4, "alpha": 32, "dropout": 0.0, "targets": "all-linear"}
    assert "adapter_model.safetensors" in made.json["files"]
    ran = winnow("run", "hello", "-m", tiny, "--adapter", out, "--max-tokens", 2, "--json")
    assert (ran.code, ran.json["plan"], ran.json["adapter"]) == (0, made.json["plan"], str(out))
    refused = winnow("run", "hello", "-m", tiny, "--adapter", out, "--plan", "lazyllm")
    assert refused.code == 2
    assert refused.err.startswith("error: adapter was trained for speed(cutoff=1")


def test_a_training_is_measured_and_drawn(winnow: Any, tiny: Path, data: Path, tmp_path: Path) -> None:
    out, picture = tmp_path / "adapter", tmp_path / "training.png"
    shown = winnow(
        "train", "speed", data, "-m", tiny, "--out", out, *QUICK, "--validation", data, "--plot", picture
    )  # fmt: skip
    assert shown.code == 0
    assert "KL" in shown.out
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "data.jsonl", "training.png"]


def test_a_picture_shows_what_is_learnt_and_what_is_held_out() -> None:
    log = [{"step": 0, "held_out": {"loss": 3.0, "kl": 0.5}}]
    log += [{"step": step, "loss": 3.0 - step, "learning_rate": 0.1, "s": 1.0} for step in (1, 2)]
    log += [{"step": 2, "held_out": {"loss": 2.0, "kl": 0.25}}]
    figure = training_figure(log, "train speed")
    panels = {axis.get_title(): axis for axis in figure.axes if axis.get_visible()}
    assert list(panels) == ["loss", "kl"]
    lines, smooth, held_out = panels["loss"].lines
    assert (list(lines.get_xdata()), list(lines.get_ydata())) == ([1, 2], [2.0, 1.0])
    assert list(smooth.get_ydata()) == [2.0, 1.5]
    assert (list(held_out.get_xdata()), list(held_out.get_ydata())) == ([0, 2], [3.0, 2.0])
    assert list(panels["kl"].lines[2].get_ydata()) == [0.5, 0.25]


def test_a_whole_model_is_trained_and_used(winnow: Any, tiny: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    shown = winnow("train", "speed", data, "-m", tiny, "--out", out, "--full", *QUICK[:-2])
    assert shown.code == 0
    assert "nats per supervised token" in shown.out
    assert "model.safetensors" in shown.out
    ran = winnow("run", "hello", "-m", out, "--max-tokens", 2, "--json")
    assert ran.json["plan"].startswith("speed(cutoff=1")
    scored = winnow("eval", "-m", out, "-t", "passkey", "-l", 256, "-n", 1, "--depth", 0.5, "--json")
    assert scored.json["accuracy"][0]["plan"] == ran.json["plan"]


@pytest.mark.parametrize(("given", "cutoff"), [("1", 1), ("0.5", 0.5), ("1.0", 1.0)])
def test_a_cutoff_is_a_count_or_a_share(given: str, cutoff: float) -> None:
    _, bound, _ = app.parse_args(["speed", "data.jsonl", "--out", "out", "--cutoff", given])
    found = bound.arguments["cutoff"]
    assert (found, type(found)) == (cutoff, type(cutoff))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--cutoff", 0), "cutoff=0: the prompt needs at least one layer"),
        (("--cutoff", 3), "cutoff=3 is above the model's 2 layers"),
        (("--cutoff", "most"), "--cutoff"),
        (("--anchors", "header"), "anchors='header'"),
        (("--decode-from", "user"), "decode_from='user'"),
        (("--full", "--lora.rank", 4), "are about adapters, not about --full; leave them out"),
        (("--full", "--teacher", "base"), "are about adapters, not about --full; leave them out"),
        (("--teacher", "needle-speed-6"), "needle-speed-6 was trained on needle, and this model"),
        (("--begin", "nowhere/at/all"), "nowhere/at/all is not a directory"),
        (("--full", "--dtype", "bfloat16"), "bfloat16, too coarse"),
        (("--lora.rank", 0), "lora rank 0"),
        (("--learning-rate", 0), "learning_rate=0"),
        (("--length", 5), "all 6 conversations are longer than 5 tokens"),
        (("--resume",), "there is no run to resume"),
        (("--plot", "/proc/x.png"), "cannot write /proc/x.png"),
        (("--validation", "nothing.jsonl"), "nothing.jsonl"),
        (("--save-minutes", 0), "save_minutes=0"),
    ],
)
def test_bad_input_is_one_line(
    flags: tuple[object, ...], message: str, winnow: Any, tiny: Path, data: Path, tmp_path: Path
) -> None:
    result = winnow("train", "speed", data, "-m", tiny, "--out", tmp_path / "out", *flags)
    assert result.code == 2
    assert result.err.startswith("error: ")
    assert message in result.err
    assert result.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_bad_data_is_named_by_line(winnow: Any, tiny: Path, data: Path, tmp_path: Path) -> None:
    with data.open("a", encoding="utf-8") as file:
        file.write('{"messages": [{"role": "user", "content": "a"}]}\n')
    result = winnow("train", "speed", data, "-m", tiny, "--out", tmp_path / "out")
    assert (result.code, result.err) == (2, "error: data.jsonl, line 7: no assistant message to learn from\n")


def test_the_output_directory_must_be_empty(winnow: Any, tiny: Path, data: Path, tmp_path: Path) -> None:
    result = winnow("train", "speed", data, "-m", tiny, "--out", tmp_path)
    assert result.code == 2
    assert "is not empty" in result.err


def test_ctrl_c_keeps_the_last_checkpoint_and_says_how_to_go_on(
    winnow: Any, tiny: Path, data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    flags = ["train", "speed", data, "-m", tiny, "--out", out, *QUICK[:2], "--steps", 3000, "--save-every", 5]
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
