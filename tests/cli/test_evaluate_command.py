import json
import math
from contextlib import suppress
from dataclasses import replace

import pytest

from winnow.cli import deliver, evaluate
from winnow.cli.evaluate_view import accuracy_table
from winnow.cli.terminal import console
from winnow.evaluation.accuracy import Accuracy, DepthScore

STREAMING = "streaming(sink=4, recent=64)"


def test_scores_by_task_with_interval_and_depth(winnow, tiny, tmp_path):
    flags = ("--task", "passkey", "--task", "kv", "--length", 512, "--depth", 0.1, "--depth", 0.9, "--examples", 2)
    png = tmp_path / "depths.png"
    document = winnow("eval", "-m", tiny, "-p", "full", "-p", STREAMING, *flags, "--plot", png, "--json").json
    assert [(each["task"], each["plan"], each["examples"]) for each in document["accuracy"]] == [
        ("passkey", "full", 4),
        ("passkey", STREAMING, 4),
        ("kv", "full", 4),
        ("kv", STREAMING, 4),
    ]
    for each in document["accuracy"]:
        assert 0 <= each["low"] <= each["score"] <= each["high"] <= 1
        assert [point["depth"] for point in each["by_depth"]] == [0.1, 0.9]
    assert png.read_bytes().startswith(b"\x89PNG")


def test_the_default_plan_is_full_attention(winnow, tiny):
    result = winnow("eval", "-m", tiny, "--task", "passkey", "--length", 400, "--depth", 0.5, "--examples", 1)
    assert "full" in result.out
    assert "passkey" in result.out


def test_fidelity_and_perplexity_agree_about_full_attention(winnow, tiny, document):
    flags = ("eval", "text", document, "-m", tiny, "--tokens", 200, "--json")
    measured = winnow(*flags, "--prompt-tokens", 1, "-p", "full", "-p", STREAMING).json
    same, other = measured["fidelity"]
    assert (same["tokens"], same["top1"]) == (199, 1.0)
    assert same["kl"] < 1e-5 < other["kl"]
    found = winnow(*flags).json["perplexity"][0]
    assert math.isclose(found["nll"], same["nll_full"], rel_tol=1e-5)
    assert math.isclose(found["nll"], other["nll_full"], rel_tol=1e-5)


def test_every_plan_is_checked_before_the_first_is_measured(winnow, tiny, document, monkeypatch):
    monkeypatch.setattr(evaluate, "fidelity", lambda *given, **options: pytest.fail("a plan was measured"))
    result = winnow("eval", "text", document, "-m", tiny, "--tokens", 40, "-p", STREAMING, "-p", "locret")
    assert (result.code, "retaining heads" in result.err) == (2, True)


def test_what_was_measured_is_written_where_nobody_reads_on(winnow, tiny, document, tmp_path, monkeypatch):
    def closed(*given):
        raise BrokenPipeError

    flags = ("eval", "text", document, "-m", tiny, "--tokens", 40, "--out", tmp_path / "out.json", "--json")
    monkeypatch.setattr(deliver, "print_json", closed)
    with suppress(BrokenPipeError):
        winnow(*flags)
    assert json.loads((tmp_path / "out.json").read_text())["perplexity"]


def test_fidelity_is_shown_as_a_table(winnow, tiny, document):
    result = winnow("eval", "text", document, "-m", tiny, "--tokens", 40, "-p", STREAMING)
    assert STREAMING in result.out
    assert "top-1" in result.out


def test_loops_have_a_column_where_there_are_any(capsys):
    stuck = Accuracy("full", "kv", 4096, 8, 0.5, 0.2, 0.8, 0.25, (DepthScore(0.5, 0.5, 8),))
    for each, words in ((stuck, ["loops", "25"]), (replace(stuck, loop_rate=0.0), ["no answer loops"])):
        console().print(accuracy_table([each], [0.5]))
        shown = " ".join(capsys.readouterr().out.split())  # the caption may be broken anywhere
        assert all(word in shown for word in words)
    assert "25" not in shown
