"""Every bad input: one line on standard error, exit code 2, and no work done."""

import json
import os
import shutil
import subprocess
import sys

import pytest

import winnow as library
from winnow.cli.commands import evaluate, look, models, train
from winnow.cli.main import COMMANDS

APPS = {"eval": evaluate.app, "train": train.app, "diagnose": look.app, "cache": models.app}
SUBCOMMANDS = [[name, own] for name, app in APPS.items() for own in app if not own.startswith("-")]
STREAMING = "streaming(sink=4, recent=64)"


@pytest.fixture(autouse=True)
def _no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **keywords: object) -> None:
        raise AssertionError("work was done before the error")

    monkeypatch.setattr("winnow.runtime.decoder.Decoder.embed", refuse)


def fails(result, *words: str) -> None:
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    for word in words:
        assert word in result.err


@pytest.mark.parametrize("prompt", ["", "  \n "])
def test_empty_prompt(winnow, tiny, prompt):
    fails(winnow("run", prompt, "-m", tiny), "prompt is empty")


@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_prompt_longer_than_the_models_positions(winnow, tiny, json_flag):
    fails(winnow("run", "x" * 40_000, "-m", tiny, *json_flag), "40017", "32768 positions")


def test_task_longer_than_the_models_positions(winnow, tiny):
    fails(winnow("compare", "-m", tiny, "-t", "passkey", "-l", 512, "-l", 32768), "32768 positions")


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("streamin(sink=4)", ["unknown policy 'streamin'", "did you mean streaming"]),
        ("STREAMING", ["unknown policy 'STREAMING'", "did you mean streaming"]),
        ("streaming(sinks=4)", ["no parameter 'sinks'", "sink, recent"]),
        ("streaming(sink=-1)", ["sink=-1 must be at least 0"]),
        ("streaming(recent=0)", ["recent=0 must be at least 1"]),
        ("streaming(sink='x')", ["must be a whole number"]),
        ("streaming + everything", ["both say what to keep"]),
        ("streaming(", ["cannot be read"]),
    ],
)
@pytest.mark.parametrize("command", [["run", "hello"], ["compare"], ["eval"]])
def test_bad_plan(winnow, tiny, command, plan, words):
    fails(winnow(*command, "-m", tiny, "--plan", plan), *words)


@pytest.mark.parametrize(
    ("typed", "named"),
    [("fit", "--length is missing"), ("fit --length", "--length is missing"), ("import", "FILE is missing")],
)
def test_what_is_missing_is_named_as_the_help_names_it(winnow, typed, named):
    fails(winnow(*typed.split()), named, f"see winnow {typed.split()[0]} --help")


@pytest.mark.parametrize("command", [["run", "hello"], ["compare"], ["eval"]])
def test_missing_model_directory(winnow, tmp_path, command):
    missing = tmp_path / "missing"
    fails(winnow(*command, "-m", missing), str(missing), "not a directory")


def test_directory_that_is_no_model(winnow, tmp_path):
    fails(winnow("run", "hello", "-m", tmp_path), "holds no model", "config.json")


@pytest.mark.parametrize(
    "command",
    [["run", "hi"], ["chat"], ["compare"], ["demo"], ["eval"], ["eval", "text", "x.txt"], ["tune"], ["diagnose"],
     ["inspect", "hi"], ["inspect-model"]],
)  # fmt: skip
def test_a_missing_adapter(winnow, tiny, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("some text", encoding="utf-8")
    fails(winnow(*command, "-m", tiny, "--adapter", tmp_path / "nowhere"), "nowhere")


def test_unsupported_architecture(winnow, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}), encoding="utf-8")
    fails(winnow("run", "hello", "-m", tmp_path), "gpt2", "llama")


def test_truncated_safetensors(winnow, tiny, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(tiny, damaged)
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    fails(winnow("run", "hello", "-m", damaged), str(damaged), "safetensors")


def test_model_without_a_tokenizer(winnow, tiny, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(tiny, bare, ignore=shutil.ignore_patterns("tokenizer*"))
    fails(winnow("run", "hello", "-m", bare), "no tokenizer")
    fails(winnow("compare", "-m", bare), "no tokenizer")


@pytest.mark.parametrize("place", ["missing/out.json", "."])
@pytest.mark.parametrize("option", ["--out", "--output", "--plot"])
@pytest.mark.parametrize("command", ["compare", "eval"])
def test_unwritable_output(winnow, tiny, tmp_path, command, option, place):
    path = tmp_path / place
    fails(winnow(command, "-m", tiny, option, path), f"cannot write {path}", "directory")


def test_two_outputs_of_one_name(winnow, tiny, tmp_path):
    path = tmp_path / "out"
    fails(winnow("compare", "-m", tiny, "--out", path, "--plot", path), f"--out and --plot are both {path}")
    assert not path.exists()


def test_a_refused_run_leaves_no_empty_output(winnow, tmp_path):
    out = tmp_path / "out.json"
    fails(winnow("compare", "-m", tmp_path / "missing", "--out", out))
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "hello", "--temperature", -1], ["temperature=-1.0 must be at least 0"]),
        (["run", "hello", "--max-tokens", 0], ["max_tokens=0"]),
        (["run", "hello", "--threads", 0], ["--threads"]),
        (["run", "hello", "--dtype", "int8"], ["dtype 'int8' is unknown"]),
        (["run", "hello", "--device", "abacus"], ["device 'abacus' is unknown"]),
        (["run", "hello", "--file", "x.txt"], ["--question"]),
        (["run", "--file", "missing.txt"], ["cannot read missing.txt"]),
        (["run", "hello", "--colour"], ["Unknown option"]),
        (["run", "hello", "world"], ["'world' is left over", "in quotes"]),
        (["run", "- a list"], ["Unknown option", "begins with - goes behind --"]),
        (["frobnicate"], ["frobnicate"]),
        (["plans", "frobnicate"], ["unknown policy 'frobnicate'", "streaming"]),
        (["compare", "--task", "frobnicate"], ["no task is called 'frobnicate'"]),
        (["compare", "--task", "kv_retrieval"], ["--data DIR"]),
        (["compare", "--task", "kv", "--haystack", "x"], ["--haystack is for passkey", "none of them"]),
        (["compare", "--task", "kv", "--data", "x"], ["--data is for kv_retrieval, line_retrieval"]),
        (["compare", "--question", "what?", "--no-chat"], ["--question, --chat", "--file"]),
        (["compare", "--file", "x.txt", "--task", "kv", "--examples", 3], ["--task, --examples: about tasks"]),
        (["eval", "text", "x.txt", "--prompt-tokens", 5], ["--prompt-tokens is for plans"]),
        (["eval", "--tokens", 5], ["--tokens"]),
        (["eval", "text", "x.txt", "--task", "kv"], ["--task"]),
        (["eval", "--depth", 1.5], ["--depth"]),
    ],
)
def test_bad_option(winnow, tiny, arguments, words):
    model = ["-m", tiny] if arguments[0] in ("run", "compare", "eval") else []
    fails(winnow(*arguments, *model), *words)


def test_chat_without_a_template(winnow, tiny, tmp_path):
    plain = tmp_path / "plain"
    shutil.copytree(tiny, plain, ignore=shutil.ignore_patterns("chat_template*"))
    fails(winnow("run", "hello", "-m", plain, "--chat"), "no chat template")


def test_fidelity_of_a_text_that_is_too_short_or_too_long(winnow, tiny, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("ab", encoding="utf-8")
    fails(winnow("eval", "text", text, "-m", tiny, "--plan", "full", "--prompt-tokens", 2), "prompt_tokens=2")
    text.write_text("a" * 40_000, encoding="utf-8")
    fails(winnow("eval", "text", text, "-m", tiny, "--plan", "full"), "40000 tokens", "32768 positions")


def test_a_file_that_is_not_text(winnow, tiny, tmp_path):
    (tmp_path / "raw").write_bytes(b"ab\xff")
    fails(winnow("run", "-m", tiny, "--file", tmp_path / "raw"), "not UTF-8", "byte 2")


def test_a_message_of_several_lines_becomes_one(winnow, monkeypatch):
    def load(*arguments: object) -> None:
        raise library.errors.ModelError("first\n  second")

    monkeypatch.setattr("winnow.cli.inputs.load_model", load)
    assert winnow("run", "hello").err == "error: first second\n"


def test_help_and_version_need_nothing(winnow):
    assert winnow("--version").out == library.__version__ + "\n"
    assert "compare" in winnow("--help").out


@pytest.mark.parametrize("command", [*([name] for name in COMMANDS), *SUBCOMMANDS], ids=" ".join)
def test_help_is_in_words(winnow, command):
    shown = winnow(*command, "--help").out
    assert "Usage: " in shown
    assert not any(code in shown for code in ("list[", "tuple[", "Annotated", "[[", "None |", "| None"))


def test_an_answer_with_characters_that_the_terminal_lacks():
    code = "import sys; from winnow.cli import main; main.run_app = lambda *of: print('\u2019') or 0; main.main([])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "\\u2019\n"), done.stderr
