"""`python -m benchmarks mapped`: the memory of a context in files, and that it answers as one in memory."""

import json
import sys

import pytest
from benchmarks.mapped import Looks, measure_here
from benchmarks.mapped_command import COLUMNS, summary

from command_line import MADE_BY
from tiny import tiny_model
from winnow import LLM, Plan

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="files are mapped on Linux only")
READS = "slowfast(budget=16, recent=8, bootstrap=4, trigger='none')"


@pytest.fixture
def here(monkeypatch):
    """Runs in this process."""

    def measure(source, jobs, *, steps, progress):
        llm = source.load()
        for plan, length in jobs:
            yield measure_here(llm, plan, length, steps=steps, progress=progress)

    monkeypatch.setattr("benchmarks.mapped_command.measure_mapped", measure)


def test_a_run_in_files_answers_as_one_in_memory(tmp_path):
    llm, told = LLM(tiny_model(), prefill_chunk=64), []
    plans = [Plan.parse(READS + store) for store in ("", f" + mapped(path={str(tmp_path)!r})")]
    plain, file = (measure_here(llm, plan, 300, steps=5, progress=told.append) for plan in plans)
    other = measure_here(llm, plans[0], 301, steps=5)
    shape = llm.decoder.shape
    assert plain.answer == file.answer != other.answer
    assert sum(told) == 2 * (300 + 5)
    assert (plain.disk_bytes, file.disk_bytes >= file.unit_bytes) == (0, True)
    assert plain.unit_bytes == file.unit_bytes == 305 * shape.layers * shape.kv_heads * shape.unit_bytes
    assert plain.read_share == pytest.approx(sum([4 + 16 + 8] * 5) / sum(range(301, 306)))
    for run in (plain, file):
        assert len(run.steps_s) == 5
        assert min(run.before_bytes, run.prefill_bytes, run.decode_bytes) > 10**7
        assert run.curve[0][0] < run.curve[-1][0]
    assert [summary(run, plain)["same"] for run in (plain, file, other)] == [None, True, None]


def test_the_highest_of_what_was_seen():
    looks = Looks([(0.0, 1, 1), (0.4, 5, 0), (0.6, 2, 2), (0.9, 1, 9), (1.3, 0, 3)])
    assert (looks.most(0, 0.5), looks.most(0.5, 9), looks.most(0.62, 0.64), looks.most(1.0, 9)) == (5, 10, 10, 10)
    assert looks.curve() == looks.taken
    many = Looks([(float(second), second % 7, 0) for second in range(2000)])
    assert len(many.curve()) == 200
    assert {own for _, own, _ in many.curve()} == {6}


def test_table_and_json(bench, here, tmp_path):
    out = tmp_path / "mapped.json"
    flags = ("--shape", "needle-like", "--dtype", "float32", "--prefill-chunk", 64, "--path", tmp_path, "--out", out)
    result = bench("mapped", "-l", 400, "--fits", 150, "--steps", 3, "-p", READS, "--resident-mib", 2, *flags)
    assert result.code == 0, result.err
    document = json.loads(out.read_text(encoding="utf-8"))
    assert (document["command"], document["complete"], document["model"]) == ("mapped", True, "needle-like")
    assert document.keys() >= MADE_BY
    rows = document["summary"]
    assert [(row["length"], "mapped" in row["plan"], row["same"]) for row in rows] == [
        (150, False, None), (150, True, True), (400, True, None),
    ]  # fmt: skip
    assert all(show(row) in result.out for row in rows for show in COLUMNS.values())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-p", "quest + mapped"], ["says how units are stored", "leave mapped out"]),
        (["--path", "nowhere"], ["path='nowhere' is no directory"]),
        (["--shape", "frobnicate"], ["shape 'frobnicate' is unknown"]),
        (["--resident-mib", 0], ["--resident-mib"]),
    ],
)
def test_bad_input_is_one_line_before_any_work(bench, monkeypatch, arguments, words):
    monkeypatch.setattr("benchmarks.mapped_command.measure_mapped", None)
    result = bench("mapped", "--shape", "needle-like", *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert all(word in result.err for word in words)
