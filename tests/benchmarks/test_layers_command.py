"""Benchmarks of layers: tables show what the JSON holds, plots are drawn, an interrupt keeps what was finished."""

import json

import pytest
from benchmarks.depth import Cell
from benchmarks.plots import SAVINGS, depth_claim, plot_sweep, sweep_claim
from benchmarks.sweep import SweepRow
from benchmarks.tables import SWEEP

from command_line import MADE_BY

LAZY = "lazyllm(layers=[1], keep=0.5)"
SMALL = ("-t", "passkey", "-l", 400, "-n", 2)


@pytest.fixture
def measured(bench, tiny, tmp_path):
    """`measured("sweep", ...)` -> standard output, the document written by --out; the plot has been drawn."""

    def call(name, *flags):
        out, png = tmp_path / f"{name}.json", tmp_path / f"{name}.png"
        result = bench(name, "-m", tiny, *SMALL, *flags, "--out", out, "--plot", png)
        assert (result.code, png.read_bytes()[:4]) == (0, b"\x89PNG")
        document = json.loads(out.read_text(encoding="utf-8"))
        assert (document["command"], document["complete"], document["seed"]) == (name, True, 0)
        assert document.keys() >= MADE_BY
        return result.out, document

    return call


def test_sweep(measured):
    flags = ("-p", LAZY, "-p", "random_drop(keep=0.5)", "--seeds", 2, "--against", "flops")
    shown, document = measured("sweep", *flags)
    rows = [SweepRow(**row) for row in document["summary"]]
    assert [row.plan for row in rows] == document["plans"] == ["full", LAZY, "random_drop(keep=0.5)"]
    for row in rows:
        assert all(show(row) in shown for show in SWEEP.values())
    assert len(document["records"]) == 2 * (1 + 1 + 2)


def test_depth(measured):
    shown, document = measured("depth", "--keep", 0.2, "--keep", 0.5)
    full, *cells = document["cells"]
    assert full["layer"] is None
    assert [(cell["layer"], cell["keep"]) for cell in cells] == [(1, 0.2), (1, 0.5)]
    for cell in document["cells"]:
        assert f"{100 * cell['score']:.1f}" in shown


def test_usage(measured):
    shown, document = measured("usage", "--plan", LAZY, "--max-tokens", 3)
    assert [(stage["first"], stage["last"]) for stage in document["stages"]] == [(0, 0), (1, 1)]
    for stage in document["stages"]:
        assert all(f"{100 * share:.1f}" in shown for share in stage["share"])
    assert document["running"][0] == len(document["records"]) == 2


def test_sparsity(measured):
    shown, document = measured("sparsity", "--mass", "0.9")
    assert [layer["layer"] for layer in document["layers"]] == [0, 1, None]
    for layer in document["layers"]:
        assert f"{100 * layer['holds']['0.9']:.2f}" in shown
        assert len(layer["curve"]) == len(document["token_shares"])


def test_schedule(bench, tiny):
    flags = ("schedule", "-m", tiny, "-l", 1000, "--rows", 0.75)
    document, shown = bench(*flags, "--json").json, bench(*flags).out
    assert document.keys() >= MADE_BY
    assert document["plan"] in shown
    assert [layer["rows"] for layer in document["layers"]] == [1000, 491]  # ceil(0.49 * 999) + 1
    assert document["rows"] == sum(layer["rows_share"] for layer in document["layers"]) / 2 <= 0.75
    assert document["flops"] == pytest.approx(sum(layer["flops_share"] for layer in document["layers"]) / 2)


MEASURES = {
    "sweep": "benchmarks.layers_command.run_sweep",
    "depth": "benchmarks.layers_command.measure_depth",
    "usage": "benchmarks.layers_command.measure_usage",
    "sparsity": "benchmarks.layers_command.measure_sparsity",
}


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("name", MEASURES)
def test_an_interrupt_keeps_what_was_finished(bench, tiny, monkeypatch, name, after):
    module, _, function = MEASURES[name].rpartition(".")
    measure = getattr(__import__(module, fromlist=[function]), function)

    def interrupted(*arguments, **keywords):
        made = measure(*arguments, **keywords)
        for _ in range(after):
            yield next(made)
        raise KeyboardInterrupt

    monkeypatch.setattr(MEASURES[name], interrupted)
    flags = {"sweep": ["-p", LAZY], "depth": ["--keep", "0.5"], "usage": ["-p", LAZY], "sparsity": []}[name]
    flags += ["-m", tiny, "-t", "passkey", "-l", 400, "-n", 4]
    result = bench(name, *flags, "--json")
    assert (result.code, "interrupted" in result.err, result.json["complete"]) == (130, True, False)
    if name == "sweep":
        assert [row["examples"] for row in result.json["summary"]] == [1, 1] * bool(after)
    elif name == "depth":
        assert [cell["examples"] for cell in result.json["cells"]] == [1, 1] * bool(after)
    else:
        assert len(result.json["records"]) == after if name == "usage" else result.json["prompts"] == after
    assert bench(name, *flags).code == 130  # the table of it, or a line that there is none


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sweep", "-p", "lazyllm(keep=2.0)"], ["keep=2.0 must be above 0"]),
        (["sweep", "-p", "lazyllm(layers=[1, 5], keep=0.5)"], ["layers are 0 to 1"]),
        (["sweep", "--against", "flops"], ["--against: is about --plot only"]),
        (["sweep", "--against", "beauty", "--plot", "x.png"], ["--against", "beauty"]),
        (["sweep", "--seeds", 0], ["--seeds"]),
        (["sweep", "-l", 32768], ["32768 positions"]),
        (["sweep", "-t", "frobnicate"], ["no task is called 'frobnicate'"]),
        (["depth", "--keep", "0.5,x"], ["--keep", "0.5,x", "float"]),
        (["depth", "--keep", "1.5"], ["keep=1.5 must be above 0"]),
        (["depth", "--layer", "0"], ["layer 0 has no layer below"]),
        (["depth", "--layer", "1.5"], ["--layer", "1.5 is no whole number"]),
        (["depth", "--layer", "9"], ["layers are 0 to 1"]),
        (["depth", "-l", 400, "-l", 800], ["--length is given 2 times; this benchmark takes one"]),
        (["usage", "-p", "lazyllm("], ["cannot be read"]),
        (["usage", "-l", 32768], ["32768 positions"]),
        (["sparsity", "--mass", "1"], ["mass of 1 must be above 0 and below 1"]),
        (["sparsity", "--plot", "missing/x.png"], ["cannot write"]),
        (["schedule"], ["give one of --speedup, --rows and --flops"]),
        (["schedule", "--rows", 0.5, "--flops", 0.5], ["give one of"]),
        (["schedule", "--speedup", 0.5], ["speedup=0.5 must be at least 1"]),
        (["schedule", "--rows", 0.1], ["no schedule computes 0.100"]),
        (["frobnicate"], ["frobnicate"]),
    ],
)
def test_bad_input_is_one_line_before_any_work(bench, tiny, monkeypatch, arguments, words):
    def refuse(*arguments, **keywords):
        raise AssertionError("work was done before the error")

    monkeypatch.setattr("winnow.runtime.decoder.Decoder.embed", refuse)
    model = [] if arguments[0] == "frobnicate" else ["-m", tiny]
    result = bench(*arguments, *model)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert all(word in result.err for word in words)


def row(name, plan, speedup, score, task="kv", length=400):
    relative = score / 0.9
    return SweepRow(
        plan, name, task, length, 10, 1, score, score - 0.1, min(1, score + 0.1), relative, 1.0, speedup, speedup / 2,
        9.0, 1 / speedup, 1 / speedup, 0.5, 0.25, 7.0, 1024, 0.75,
    )  # fmt: skip


def test_the_title_names_the_cheapest_plan_that_is_as_good():
    rows = [row("full", "full", 1, 0.9), row("a", "a(1)", 2, 0.9), row("a", "a(2)", 3, 0.5), row("b", "b", 1.5, 0.9)]
    assert sweep_claim(rows, "ttft") == "a: 2.00x faster to the first token at 100 % of the score"
    assert sweep_claim(rows, "rows") == "a: 50 % of prefill's rows saved at 100 % of the score"
    assert sweep_claim([rows[0], rows[2]], "ttft").startswith("No plan is cheaper and keeps 99 %")
    assert sweep_claim(rows, "generation").startswith("No plan")  # 2 / 2 is no saving


def test_a_sweep_of_several_tasks_and_lengths_is_drawn(tmp_path):
    plans = (("full", "full", 1.0, 0.9), ("a", "a(1)", 2.0, 0.9), ("a", "a(2)", 3.0, 0.5))
    rows = [row(*each, task, length) for length in (400, 800) for task in ("x", "y", "all tasks") for each in plans]
    for against in SAVINGS:
        plot_sweep(tmp_path / "plot.png", rows, against)
        assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_depth_title_tells_from_where_on_little_is_enough():
    def cell(layer, keep, score):
        return Cell(layer, keep, 10, score, score, score, {})

    full = cell(None, None, 1.0)
    line = [cell(1, 0.1, 0.2), cell(2, 0.1, 1.0), cell(3, 0.1, 0.995), cell(1, 0.5, 1.0)]
    assert depth_claim([full, *line]) == "From layer 2 on, 10 % of the prompt is enough"
    assert depth_claim([full, cell(1, 0.1, 0.2)]).startswith("No share kept holds 99 %")
