"""`winnow bench decoding`: the table shows what the JSON holds, an interrupt keeps whole lengths, errors come first."""

import json

import pytest

from winnow.bench.speed import Rates
from winnow.cli.bench_decoding import COLUMNS

PLAN = "slowfast(budget=8, sink=1, recent=4, trigger='periodic', interval=2, selector='attention')"
SMALL = ("--shape", "needle-like", "--dtype", "float32", "--new", 3, "--repeats", 2, "--stock-steps", 1)


@pytest.fixture(autouse=True)
def _no_probe(monkeypatch):
    monkeypatch.setattr("winnow.cli.bench_decoding.machine_rates", lambda *_: Rates(10.0, 20.0, 100.0))


def test_table_json_and_plot(winnow, tmp_path):
    out, png = tmp_path / "decoding.json", tmp_path / "decoding.png"
    flags = ("-l", 30, "-l", 40, "-b", 1, "-b", 2, "-p", PLAN, "--out", out, "--plot", png)
    result = winnow("bench", "decoding", *SMALL, *flags)
    assert (result.code, png.read_bytes()[:4]) == (0, b"\x89PNG")
    document = json.loads(out.read_text(encoding="utf-8"))
    assert (document["command"], document["complete"], document["new"]) == ("bench decoding", True, 3)
    arms = [(r["plan"], r["batch"]) for r in document["records"] if r["length"] == 40]
    assert arms == [("transformers", 1), ("full", 1), (PLAN, 1), ("full", 2), (PLAN, 2)]
    assert len(document["records"]) == 2 * 5
    for record in document["records"]:
        assert all(show(record) in result.out for show in COLUMNS.values())


def test_an_interrupt_keeps_whole_lengths(winnow, monkeypatch):
    from winnow.bench.decoding import measure_decoding

    def interrupted(*arguments, **keywords):
        yield next(measure_decoding(*arguments, **keywords))
        raise KeyboardInterrupt

    monkeypatch.setattr("winnow.cli.bench_decoding.measure_decoding", interrupted)
    result = winnow("bench", "decoding", *SMALL, "-l", 30, "-l", 40, "-p", PLAN, "--json")
    assert (result.code, result.json["complete"]) == (130, False)
    assert {record["length"] for record in result.json["records"]} == {30}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-p", "slowfast(trigger='sentence')"], ["no tokenizer", "trigger='periodic'"]),
        (["-p", "slowfast(budget=0)"], ["budget=0 must be at least 1"]),
        (["-p", "slowfast(trigger='periodic', layer_groups=9)"], ["layer_groups=9", "8 layers"]),
        (["-l", 131072], ["131076 tokens", "131072 positions"]),
        (["--shape", "frobnicate"], ["shape 'frobnicate' is unknown"]),
        (["--dtype", "int4"], ["dtype 'int4' is unknown"]),
        (["-b", 0], ["--batch"]),
        (["--plot", "missing/x.png"], ["cannot write"]),
    ],
)
def test_bad_input_is_one_line_before_any_work(winnow, monkeypatch, arguments, words):
    def refuse(*arguments, **keywords):
        raise AssertionError("work was done before the error")

    monkeypatch.setattr("winnow.cli.bench_decoding.measure_decoding", refuse)
    result = winnow("bench", "decoding", *SMALL, *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert all(word in result.err for word in words)
