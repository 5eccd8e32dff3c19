"""`python -m benchmarks decoding`: tables show what the JSON holds, an interrupt keeps whole lengths; errors."""

import json

import pytest
from benchmarks.decoding_command import COLUMNS
from benchmarks.speed import Rates

from command_line import MADE_BY

PLAN = "slowfast(budget=8, sink=1, recent=4, trigger='periodic', interval=2, selector='attention')"
SMALL = ("--shape", "needle-like", "--dtype", "float32", "--new", 3, "--repeats", 2, "--stock-steps", 1)


@pytest.fixture(autouse=True)
def _no_probe(monkeypatch):
    monkeypatch.setattr("benchmarks.decoding_command.machine_rates", lambda *_: Rates(10.0, 20.0, 100.0))


def test_table_json_and_plot(bench, tmp_path):
    out, png = tmp_path / "decoding.json", tmp_path / "decoding.png"
    flags = ("-l", 30, "-l", 40, "-b", 1, "-b", 2, "-p", PLAN, "--out", out, "--plot", png)
    result = bench("decoding", *SMALL, *flags)
    assert (result.code, png.read_bytes()[:4]) == (0, b"\x89PNG")
    document = json.loads(out.read_text(encoding="utf-8"))
    assert (document["command"], document["complete"], document["new"]) == ("decoding", True, 3)
    assert document.keys() >= MADE_BY
    arms = [(r["plan"], r["batch"]) for r in document["records"] if r["length"] == 40]
    assert arms == [("transformers", 1), ("full", 1), (PLAN, 1), ("full", 2), (PLAN, 2)]
    assert len(document["records"]) == 2 * 5
    for record in document["records"]:
        assert all(show(record) in result.out for show in COLUMNS.values())


def test_an_interrupt_keeps_whole_lengths(bench, monkeypatch):
    from benchmarks.decoding import measure_decoding

    def interrupted(*arguments, **keywords):
        yield next(measure_decoding(*arguments, **keywords))
        raise KeyboardInterrupt

    monkeypatch.setattr("benchmarks.decoding_command.measure_decoding", interrupted)
    result = bench("decoding", *SMALL, "-l", 30, "-l", 40, "-p", PLAN, "--json")
    assert (result.code, result.json["complete"]) == (130, False)
    assert {record["length"] for record in result.json["records"]} == {30}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-p", "slowfast(trigger='sentence')"], ["no tokenizer", "trigger='periodic'"]),
        (["-p", "slowfast(budget=0)"], ["budget=0 must be at least 1"]),
        (["-p", "slowfast(trigger='periodic', layer_groups=9)"], ["layer_groups=9", "8 layers"]),
        (["-l", 131072], ["131,076 tokens", "131,072 positions"]),
        (["--shape", "frobnicate"], ["shape 'frobnicate' is unknown"]),
        (["--dtype", "int4"], ["dtype 'int4' is unknown"]),
        (["--batch", 0], ["--batch"]),
        (["--plot", "missing/x.png"], ["cannot write"]),
    ],
)
def test_bad_input_is_one_line_before_any_work(bench, monkeypatch, arguments, words):
    def refuse(*arguments, **keywords):
        raise AssertionError("work was done before the error")

    monkeypatch.setattr("benchmarks.decoding_command.measure_decoding", refuse)
    small = [each for pair in zip(SMALL[::2], SMALL[1::2], strict=True) if pair[0] not in arguments for each in pair]
    result = bench("decoding", *small, *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert all(word in result.err for word in words)
