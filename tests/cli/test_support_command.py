"""`winnow diagnose --support`: the table shows what the JSON holds, the figure is drawn, bad input is one line."""

import json
import sys

import pytest

from winnow.cli.support_plot import claim, drawn, losing, plot_support
from winnow.cli.support_view import support_view
from winnow.cli.terminal import console
from winnow.diagnosis.support_figures import Age, LayerSupport, Support
from winnow.plan import Plan
from winnow.policies.read.slowfast import SlowFast

PLAN = (
    "slowfast(budget=16, sink=2, recent=16, bootstrap=4, trigger='sentence', interval=8, min_gap=4, selector='pooled')"
)


def rows_of(shown):
    return {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.strip()}


def test_needle_from_the_prompt_to_the_picture(winnow, tmp_path):
    out, png = tmp_path / "found.json", tmp_path / "found.png"
    flags = ("--task", "multi_needle", "--length", 512, "--examples", 1, "--device", "cpu", "--plan", PLAN)
    result = winnow("diagnose", "support", *flags, "--out", out, "--plot", png)
    found = json.loads(out.read_text(encoding="utf-8"))
    assert (result.code, png.read_bytes()[:4]) == (0, b"\x89PNG")
    assert (found["command"], found["complete"], found["prompts"]) == ("diagnose support", True, 1)
    assert Plan.parse(found["plan"]) == Plan.parse(PLAN)
    assert found["boundaries"] == 3  # four sentences
    assert found["boundaries"] <= found["slow"] <= found["steps"] // 4
    rows = rows_of(result.out.partition("  all ")[0])  # of the first table
    for layer in found["layers"]:
        cells = []
        for name in ("overlap_inside", "overlap_boundary", "recall_inside", "recall_boundary", "best"):
            heads = layer[name]
            assert all(0 <= head <= 1 for head in heads)
            cells += [f"{100 * sum(heads) / len(heads):.1f}", f"({100 * min(heads):.1f})"]
        assert rows[str(layer["layer"])] == cells
    assert [age["distance"] for age in found["ages"]] == list(range(9))  # of at most `interval` steps
    assert sum(age["counted"][0] for age in found["ages"][1:]) == found["steps"]
    assert found["ages"][0]["counted"] == [found["slow"] + 1] * len(found["layers"])


def test_own_text_and_the_default_budget(winnow, tiny, document):
    flags = ("diagnose", "support", "-m", tiny, "--file", document, "--max-tokens", 4, "--ignore-eos", "--json")
    found = winnow(*flags).json
    assert (found["prompts"], found["steps"]) == (1, 3)
    tokens = len(document.read_bytes().rstrip(b"\n")) + len("<user><assistant>")
    assert found["policy"]["budget"] == tokens // 16
    assert winnow(*flags, "--budget", 7).json["plan"] == "slowfast(budget=7)"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--plan", "streaming(recent=8)"], ["slowfast(...) alone"]),
        (["--plan", "streaming(recent=8) + slowfast(budget=8)"], ["slowfast(...) alone"]),
        (["--plan", "slowfast(bugdet=8)"], ["no parameter 'bugdet'"]),
        (["--plan", "slowfast(budget=8)", "--budget", 8], ["--budget: is a part of --plan"]),
        (["--budget", 400, "-l", 400], ["budget=400", "smaller ones"]),
        (["--budget", 0], ["--budget"]),
        (["--question", "Why?"], ["--question: is about --file only"]),
        (["--max-tokens", 1], ["--max-tokens"]),
    ],
)
def test_bad_input_is_one_line_before_any_work(winnow, tiny, monkeypatch, arguments, words):
    def refuse(*arguments, **keywords):
        raise AssertionError("work was done before the error")

    for work in ("winnow.diagnosis.support.observe", "winnow.diagnosis.diagnose.observe"):
        monkeypatch.setattr(work, refuse)
    result = winnow("diagnose", "support", "-m", tiny, "-t", "passkey", *arguments)
    assert (result.code, result.out) == (2, "")
    assert (result.err[:7], result.err.count("\n")) == ("error: ", 1)
    for word in words:
        assert word in result.err


def test_an_interrupt_keeps_what_was_finished(winnow, tiny, monkeypatch):
    module = sys.modules["winnow.cli.diagnose"]  # the package has the function under this name
    measure = module.support_tasks

    def interrupted(*arguments, **keywords):
        yield next(measure(*arguments, **keywords))
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "support_tasks", interrupted)
    flags = ("-t", "passkey", "-l", 400, "-n", 2, "--max-tokens", 3, "--ignore-eos", "--json")
    result = winnow("diagnose", "support", "-m", tiny, *flags)
    assert (result.code, "interrupted" in result.err) == (130, True)
    assert (result.json["complete"], result.json["prompts"]) == (False, 1)


def test_missing_figures_are_shown_and_drawn(tmp_path, capsys):
    one, none = (0.5,), (None,)
    layers = (LayerSupport(0, one, none, (0.75,), none, (0.9,)), LayerSupport(1, none, none, none, none, none))
    ages = (
        Age(0, (9, 0), ((1.0,), none), ((0.8,), none), ((0.9,), none)),
        Age(1, (9, 0), ((0.6,), none), ((0.7,), none), ((0.9,), none)),
        Age(2, (8, 0), ((0.6,), none), ((0.75,), none), ((0.9,), none)),
        Age(3, (1, 0), ((0.1,), none), ((0.1,), none), ((0.9,), none)),  # seen too seldom to be drawn
    )
    found = Support(SlowFast(budget=8), 1, 26, 0, 0, layers, ages)
    console().print(support_view(found, "m"))
    rows = rows_of(capsys.readouterr().out)
    assert rows["all"] == ["50.0", "-", "75.0", "-", "90.0"]
    assert rows["3"] == ["10.0", "10.0", "90.0", "1"]
    assert losing(layers) == 0
    assert drawn(ages) == list(ages[:3])
    assert (
        claim(found) == "A selection catches 80 % of the attention when it is made, and 70 % at the least, 1 step later"
    )
    plot_support(tmp_path / "plot.png", found, "m")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
