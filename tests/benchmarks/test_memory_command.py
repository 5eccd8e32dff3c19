"""`python -m benchmarks memory`: tables show what the JSON holds, what is left out is said, Ctrl-C keeps the rest."""

import json
import os
import signal
from pathlib import Path

import pytest
from benchmarks.memory import LeftOut, MemoryRow, measure_here
from benchmarks.memory_command import COLUMNS

import forked
from command_line import MADE_BY

HEADS = "random_heads(budget=64, chunk=32, local=8)"
FLAGS = ("-p", HEADS, "--prefill-chunk", 32, "--full-up-to", 300)


@pytest.fixture
def here(monkeypatch):
    """Runs in this process, and the chance to say what comes instead of one: `here[1] = KeyboardInterrupt`."""
    instead = {}

    def measure(source, jobs, *, repeats, progress):
        llm = source.load()
        for index, (plan, length) in enumerate(jobs * repeats):
            if isinstance(other := instead.get(index), LeftOut):
                yield other
            elif other is not None:
                raise other
            else:
                yield measure_here(llm, plan, length, steps=3, progress=progress)

    monkeypatch.setattr("benchmarks.memory_command.measure_memory", measure)
    return instead


def test_table_json_and_plot(bench, tiny, tmp_path, here):
    out, png = tmp_path / "memory.json", tmp_path / "memory.png"
    flags = ("-l", 600, "-l", 200, "--repeats", 2, "--out", out, "--plot", png)
    result = bench("memory", "-m", tiny, *FLAGS, *flags)
    assert (result.code, png.read_bytes()[:4]) == (0, b"\x89PNG")
    document = json.loads(out.read_text(encoding="utf-8"))
    assert (document["command"], document["complete"], document["model"]) == ("memory", True, str(tiny))
    assert document.keys() >= MADE_BY
    assert document["plans"] == ["full", HEADS]
    assert len(document["records"]) == 3 * 2
    rows = [MemoryRow(**row) for row in document["summary"]]
    assert [(row.plan, row.length, row.repeats) for row in rows] == [("full", 200, 2), (HEADS, 200, 2), (HEADS, 600, 2)]
    for row in rows:
        assert all(show(row) in result.out for show in COLUMNS.values())
    assert [row.peak_cache_bytes / row.bound_bytes for row in rows[1:]] == [1.0, 1.0]
    [left] = document["left_out"]
    assert (left["plan"], left["length"]) == ("full", 600)
    assert left["reason"] in result.out


def test_random_weights_take_any_length(bench, here):
    flags = ("-l", 60, "--shape", "needle-like", "--prefill-chunk", 32)
    document = bench("memory", "-p", HEADS, *flags, "--dtype", "float32", "--json").json
    assert (document["model"], document["dtype"], document["left_out"]) == ("needle-like", "float32", [])
    assert document["records"][0]["peak_cache_bytes"] == (60 + 3) * 8 * 2 * 2 * 32 * 4


@pytest.mark.parametrize("after", [0, 1])
def test_an_interrupt_keeps_what_was_finished(bench, tiny, here, after, tmp_path):
    here[after] = KeyboardInterrupt()
    result = bench("memory", "-m", tiny, *FLAGS, "-l", 200, "--json", "--plot", tmp_path / "x.png")
    assert (result.code, "interrupted" in result.err, result.json["complete"]) == (130, True, False)
    assert len(result.json["records"]) == len(result.json["summary"]) == after
    assert bench("memory", "-m", tiny, *FLAGS, "-l", 200).code == 130  # the table, or a line that there is none


def test_a_process_that_was_ended_is_said_and_the_others_count(bench, tiny, here):
    here[0] = LeftOut("full", 200, "its process was ended by SIGKILL")
    result = bench("memory", "-m", tiny, *FLAGS, "-l", 200, "--json")
    assert (result.code, result.json["complete"], len(result.json["records"])) == (0, True, 1)
    assert result.json["left_out"] == [here[0].to_dict()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-p", "random_heads(budget=0)"], ["budget=0 must be at least 1"]),
        (["-p", "locret"], ["there are no retaining heads"]),
        (["-p", "lazyllm", "-l", 40000], ["40000 tokens", "32768 positions"]),
        (["-p", "random_heads(budget=64, local=50)", "-l", 40], ["local=50", "40 tokens"]),
        (["-p", "full", "-l", 400, "--full-up-to", 300], ["nothing is left to run", "300 tokens"]),
        (["--shape", "needle-like"], ["--model: is the model itself", "--shape"]),
        (["--length", 0], ["--length"]),
        (["--repeats", 0], ["--repeats"]),
        (["--dtype", "int8"], ["dtype 'int8' is unknown"]),
        (["--plot", "missing/x.png"], ["cannot write"]),
    ],
)
def test_bad_input_is_one_line_before_any_work(bench, tiny, monkeypatch, arguments, words):
    monkeypatch.setattr("benchmarks.memory_command.measure_memory", None)
    result = bench("memory", "-m", tiny, *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert all(word in result.err for word in words)


def test_an_unknown_shape_is_refused(bench):
    result = bench("memory", "--shape", "frobnicate")
    assert (result.code, "shape 'frobnicate' is unknown" in result.err) == (2, True)


def test_ctrl_c_ends_every_process_in_silence(tiny, tmp_path):
    out = tmp_path / "out.json"
    command = ["memory", "-m", tiny, "-p", HEADS, "-l", 200, "-l", 300_000, "--prefill-chunk", 32]
    command = ["-m", "benchmarks", *command, "--out", out, "--json"]
    process = forked.start(command, cwd=Path(__file__).parents[2], start_new_session=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("1 of 3 runs")  # its second process is starting
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it, to all of them
    shown, err = process.communicate(timeout=60)  # returns when all that share its standard error have ended
    assert (process.returncode, err) == (130, "interrupted; this is what was finished\n")
    document = json.loads(shown)
    assert document == json.loads(out.read_text(encoding="utf-8"))
    [record] = document["records"]
    assert (record["plan"], record["peak_cache_bytes"]) == ("full", (200 + 16) * 2 * 2 * 2 * 8 * 4)
    assert record["peak_bytes"] >= record["before_bytes"] > 10**8
