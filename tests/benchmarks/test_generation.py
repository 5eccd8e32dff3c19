"""Whole generations under several plans: the work they count; times are not asserted."""

import json

import pytest
import torch
from benchmarks.generation import measure_generation
from benchmarks.shapes import random_model, shape_named

from command_line import MADE_BY
from winnow import LLM, Plan

LENGTH, NEW = 40, 4


@pytest.fixture(scope="module")
def measured():
    shape = shape_named("needle-like")
    llm = LLM(random_model(shape, torch.float32, torch.device("cpu")), prefill_chunk=16)
    plans = [Plan.parse(text) for text in ("lazyllm", "lazyllm(keep=1.0)")]
    turns = []
    found = measure_generation(llm, shape, plans, LENGTH, NEW, repeats=2, progress=turns.append)
    assert len(turns) == 3 * 3
    return found


def test_every_arm_does_all_repeats_and_steps(measured):
    assert [each.plan for each in measured] == ["full", "lazyllm", "lazyllm(keep=1.0)"]
    for each in measured:
        assert len(each.ttft_s) == len(each.total_s) == 2
        assert all(len(steps) == NEW - 1 for steps in each.steps_s)
        assert all(total >= ttft > 0 for total, ttft in zip(each.total_s, each.ttft_s, strict=True))


def test_the_records_count_the_work(measured):
    full, lazy, off = (each.to_dict(measured[0]) for each in measured)
    assert full["ttft_ratio"] == full["step_ratio"] == full["total_ratio"] == 1.0
    assert full["stats"]["rows_computed"] == off["stats"]["rows_computed"] == 8 * (LENGTH + NEW - 1)
    assert lazy["stats"]["rows_computed"] < full["stats"]["rows_computed"]
    assert all(each["stats"]["new_tokens"] == NEW for each in (full, lazy, off))
    assert all(each["stats"]["total_s"] > each["stats"]["ttft_s"] > 0 for each in (full, lazy, off))
    assert lazy["stats"]["aux_bytes"] > 0 == off["stats"]["aux_bytes"]


def test_the_command_shows_what_its_json_holds(bench, tmp_path):
    out = tmp_path / "generation.json"
    flags = ("--shape", "needle-like", "--dtype", "float32", "--new", 3, "--repeats", 2, "-p", "lazyllm", "--out", out)
    result = bench("generation", *flags, "-l", LENGTH)
    document = json.loads(out.read_text(encoding="utf-8"))
    assert (result.code, document["command"], document["complete"], document["new"]) == (0, "generation", True, 3)
    assert document.keys() >= MADE_BY
    assert [record["plan"] for record in document["records"]] == ["full", "lazyllm"]
    assert all(f"{record['total_s']:.2f}" in result.out for record in document["records"])
    refused = bench("generation", *flags, "-l", 131072)
    assert (refused.code, "131,075 tokens" in refused.err) == (2, True)
