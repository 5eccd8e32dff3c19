"""`python -m benchmarks forks`: what is reserved for samples that share a prompt, and what the table shows."""

import json
from dataclasses import replace

import pytest
from benchmarks.forks import ForksRun, measure_here, summarise_forks
from benchmarks.forks_command import COLUMNS

from command_line import MADE_BY
from tiny import tiny_model
from winnow import LLM, Plan

STEPS, PROMPT = 4, 300


def test_samples_share_the_prompt_s_units_in_the_formula():
    llm, told = LLM(tiny_model()), []
    shape = llm.decoder.shape
    each = shape.layers * shape.kv_heads * shape.unit_bytes
    one, many = (measure_here(llm, Plan(), [5] * PROMPT, count, steps=STEPS, progress=told.append) for count in (1, 5))
    assert one.reserved_bytes == one.apart_bytes == (PROMPT + STEPS + 1) * each
    assert many.reserved_bytes == (PROMPT + 5 * (STEPS + 1)) * each
    assert many.apart_bytes == 5 * one.reserved_bytes
    assert sum(told) == 2 * (PROMPT + STEPS)
    assert min(one.before_bytes, one.prompt_bytes, one.after_bytes) > 0


def test_medians_of_each_count():
    run = ForksRun(1, 10, 10, 0, 1, 5, "memory")
    runs = [run, replace(run, samples=2), replace(run, after_bytes=9), replace(run, after_bytes=6)]
    assert [(row.samples, row.grown_bytes) for row in summarise_forks(runs)] == [(1, 6), (2, 5)]


@pytest.mark.usefixtures("forking")
def test_table_and_json(bench, tiny, tmp_path):
    out = tmp_path / "forks.json"
    result = bench("forks", "-m", tiny, "-l", 50, "--samples", 1, "--samples", 3, "--steps", 2, "--out", out)
    assert result.code == 0, result.err
    told = json.loads(out.read_text(encoding="utf-8"))
    assert (told["command"], told["complete"], told["plan"]) == ("forks", True, "full")
    assert told.keys() >= MADE_BY
    assert [row["samples"] for row in told["summary"]] == [1, 3]
    assert all(heading.split("\n")[0] in result.out for heading in COLUMNS)
