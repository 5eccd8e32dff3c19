"""`winnow inspect`: the page, the trace, the table, and what it refuses."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from winnow.cli.inspect_plot import claim, retained_figure, shares
from winnow.engine.engine import Engine
from winnow.inspector import Snapshot, Trace

PLAN = "lazyllm(layers=[1], keep=0.4, revive='never')"


@pytest.fixture
def refuses(winnow, monkeypatch):
    """Run a command that has to fail on one line, before any work."""

    def refuse(*arguments: object, **keywords: object) -> None:
        raise AssertionError("work was done before the error")

    def call(*arguments: object) -> str:
        with monkeypatch.context() as patched:
            patched.setattr("winnow.runtime.decoder.Decoder.embed", refuse)
            result = winnow("inspect", *arguments)
        assert (result.code, result.out) == (2, "")
        assert result.err.startswith("error: ")
        assert result.err.count("\n") == 1
        return str(result.err)

    return call


def test_page_trace_and_table(winnow, tiny, tmp_path):
    out, file = tmp_path / "page.html", tmp_path / "trace.json"
    arguments = ("inspect", "hello there", "-m", tiny, "-p", PLAN, "--max-tokens", 4, "--ignore-eos", "--out", out)
    result = winnow(*arguments, "--trace", file)
    assert (result.code, result.err) == (0, "")
    trace = Trace.from_dict(json.loads(file.read_text(encoding="utf-8")))
    assert (trace.plan, len(trace.steps), trace.finish_reason) == (PLAN, 4, "length")
    page = out.read_text(encoding="utf-8")
    data = re.search(r'id="trace">(.*?)</script>', page, re.DOTALL)[1]
    assert Trace.from_dict(json.loads(data)) == trace
    assert f"{trace.steps[0].rows}" in result.out
    assert all("parked" in shown and "set aside" not in shown for shown in (page, result.out))
    assert str(out) in result.out.replace("\n", "")
    assert len(re.findall(r"^\d ", result.out, re.MULTILINE)) == 4


def test_json_has_the_figures_of_the_table(winnow, tiny, tmp_path):
    out = tmp_path / "page.html"
    flags = ("-m", tiny, "-p", PLAN, "--max-tokens", 3, "--ignore-eos", "--out", out, "--json")
    record = winnow("inspect", "hello", *flags).json
    assert (record["command"], record["complete"], record["out"]) == ("inspect", True, str(out))
    assert sum(step["rows_computed"] for step in record["steps"]) == record["stats"]["rows_computed"]
    assert {"model", "device", "versions"} <= record.keys()
    run = winnow("run", "hello", "-m", tiny, "-p", PLAN, "--max-tokens", 3, "--ignore-eos", "--json").json
    assert record["stats"]["rows_computed"] == run["stats"]["rows_computed"]


def test_slow_steps_are_told(winnow, tiny, document, tmp_path):
    plan = "slowfast(budget=4, sink=1, recent=3, bootstrap=2, trigger='periodic', interval=3, selector='attention')"
    flags = ("--no-chat", "--max-tokens", 8, "--ignore-eos", "--out", tmp_path / "page.html")
    arguments = ("inspect", "-f", document, "-m", tiny, *flags)
    record, lines = (winnow(*arguments, "-p", plan, *last) for last in (["--json"], []))
    slow = [step["slow"] for step in record.json["steps"]]
    assert slow == [None, False, False, True, False, False, True, False]
    ends = [line.split()[-1] for line in lines.out.splitlines() if re.match(r"\d ", line)]
    assert [end for end in ends if end in ("slow", "fast")] == ["slow" if each else "fast" for each in slow[1:]]
    assert "slow steps: 2 of 7" in " ".join(lines.out.split())
    assert "slow steps" not in winnow(*arguments, "-p", "full").out


def test_many_steps_make_a_short_table(winnow, tiny, tmp_path):
    flags = ("-m", tiny, "-p", "full", "--max-tokens", 60, "--ignore-eos", "--out", tmp_path / "page.html")
    lines = winnow("inspect", "hello", *flags).out.splitlines()
    assert len(lines) < 50
    assert any(line.startswith("59 ") for line in lines)
    assert "…" in [line.strip() for line in lines]


def test_the_prompt_can_be_a_file_with_a_question(winnow, tiny, document, tmp_path):
    flags = ("-m", tiny, "-p", "full", "--max-tokens", 2, "--no-chat", "--out", tmp_path / "page.html", "--json")
    record = winnow("inspect", "--file", document, "--question", "When?", *flags).json
    assert record["stats"]["prompt_tokens"] == len(document.read_text().rstrip("\n") + "\n\nWhen?")


def test_an_interrupt_shows_what_was_finished(winnow, tiny, tmp_path, monkeypatch):

    real, calls = Engine.step, []

    def step(*arguments, **keywords):
        calls.append(1)
        if len(calls) == 4:  # the prompt, and three steps
            raise KeyboardInterrupt
        return real(*arguments, **keywords)

    monkeypatch.setattr(Engine, "step", step)
    file = tmp_path / "t.json"
    flags = ("-m", tiny, "-p", "full", "--ignore-eos", "--out", tmp_path / "page.html", "--trace", file)
    result = winnow("inspect", "hello", *flags)
    assert (result.code, result.err) == (130, "interrupted; this is what was finished\n")
    trace = Trace.from_dict(json.loads(file.read_text()))
    assert (len(trace.steps), trace.finish_reason) == (3, None)


def test_an_interrupted_prompt_leaves_nothing(winnow, tiny, tmp_path, monkeypatch):
    def step(*arguments, **keywords):
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "step", step)
    result = winnow("inspect", "hello", "-m", tiny, "-p", "full", "--out", tmp_path / "page.html")
    assert (result.code, result.out, result.err.count("\n")) == (130, "", 1)
    assert not list(tmp_path.iterdir())


def test_retained_draws_what_the_heads_kept(winnow, tiny, document, tmp_path):
    picture, file = tmp_path / "kept.png", tmp_path / "trace.json"
    flags = ("-m", tiny, "--no-chat", "--max-tokens", 2, "--ignore-eos", "--out", tmp_path / "page.html")
    plan = "random_heads(budget=40, chunk=100, local=8, width=8)"
    arguments = ("inspect", "-f", document, *flags, "-p", plan, "--retained", picture, "--trace", file)
    result = winnow(*arguments, "--json")
    assert (result.json["retained"], picture.read_bytes()[:8]) == (str(picture), b"\x89PNG\r\n\x1a\n")
    trace = Trace.from_dict(json.loads(file.read_text(encoding="utf-8")))
    assert [snapshot.known for snapshot in trace.snapshots[:2]] == [100, 200]
    assert trace.snapshots[-1].known == trace.prompt
    assert f"wrote {picture}" in winnow(*arguments).out.replace("\n", "")

    figure = retained_figure(trace)
    panels = figure.axes[: trace.layers * trace.kv_heads]
    assert len(figure.axes) == len(panels) + 1  # the legend
    for number, axis in enumerate(panels):
        layer, head = trace.layers - 1 - number // trace.kv_heads, number % trace.kv_heads
        drawn = axis.images[0].get_array()
        wanted = shares(trace, layer, head, drawn.shape[1])
        assert len(drawn) == len(trace.snapshots)
        assert (drawn.filled(-1) == np.nan_to_num(wanted, nan=-1)).all()
    beside = "(budget=40, and the 8 newest on top)"
    assert claim(trace).startswith(f"A KV head keeps 48 of {trace.prompt} tokens {beside}; ")


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (8, 2), (16, 8)])
def test_the_figure_fits_any_model(layers, heads):
    kept = Snapshot(known=9, kept=((((0, 4),),) * heads,) * layers)
    trace = Trace("m", "full", layers, heads, (), 9, 0, (), None, {}, (), (replace(kept, known=5), kept))
    figure = retained_figure(trace)
    assert len(figure.axes) == layers * heads + 1
    wide, high = figure.get_size_inches()
    assert 3 < wide < 13
    assert 2.5 < high < 21
    assert claim(trace) == "A KV head keeps 4 of 9 tokens; 56 % of them stay in no head"
    uneven = replace(trace, snapshots=(replace(kept, kept=((((0, 4),), ((3, 9),)),)),))
    assert claim(uneven) == "A KV head keeps 4 to 6 of 9 tokens; 0 % of them stay in no head"


def test_retained_needs_matplotlib(refuses, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("winnow.cli.outputs.find_spec", lambda name: None)
    said = refuses("hello", "-m", tiny, "-p", "streaming", "--retained", "a.png")
    assert all(word in said for word in ("--retained needs matplotlib", "bench"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["", "-p", "full"], ["prompt is empty"]),
        (["hello", "-p", "lazily"], ["unknown policy 'lazily'"]),
        (["hello", "-p", "lazyllm(layers=[7], keep=0.5)"], ["layers"]),
        (["hello", "-p", "full", "--max-tokens", 0], ["--max-tokens"]),
        (["x" * 40_000, "-p", "full"], ["32768 positions"]),
        (["--file", "missing.txt"], ["cannot read missing.txt"]),
        (["hello", "--out", "trace.json"], ["--out trace.json", ".html"]),
        (["hello", "--out", "a.html", "--trace", "./a.html"], ["--out and --trace"]),
        (["hello", "--out", "missing/a.html"], ["cannot write missing/a.html"]),
        (["hello", "--out", "a.html", "--trace", "missing/a.json"], ["cannot write missing/a.json"]),
        (["hello", "--out", "a.html", "-p", "streaming", "--retained", "a.html"], ["--out and --retained"]),
        (["hello", "--trace", "a.png", "-p", "streaming", "--retained", "./a.png"], ["--trace and --retained"]),
        (["hello", "-p", "streaming", "--retained", "missing/a.png"], ["cannot write missing/a.png"]),
        (["hello", "-p", "full", "--retained", "a.png"], ["--retained", "'full' evicts none"]),
        (["hello", "--retained", "a.png"], ["'lazyllm' evicts none"]),
        (["hello", "-m", "nowhere/at/all"], ["nowhere/at/all"]),
    ],
)
def test_bad_input(refuses, tiny, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    said = refuses(*arguments, *([] if "-m" in arguments else ["-m", tiny]))
    assert all(word in said for word in words)
    assert not list(tmp_path.iterdir())


def test_what_an_adapter_was_trained_for_is_the_plan(winnow, tmp_path):
    asked = ("inspect", "The ferry leaves at nine.", "-m", "needle", "--max-tokens", 2, "--out", tmp_path / "page.html")
    assert winnow(*asked, "--adapter", "needle-speed-2", "--json").json["plan"].startswith("speed(cutoff=2")
    assert winnow(*asked, "--json").json["plan"] == "lazyllm"
