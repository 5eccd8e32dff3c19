"""Whole generations under several plans: the work they count; times are not asserted."""

import pytest
import torch

from winnow import Plan
from winnow.bench.generation import measure_generation
from winnow.bench.shapes import random_model, shape_named
from winnow.runtime.decoder import Decoder

LENGTH, NEW = 40, 4


@pytest.fixture(scope="module")
def measured():
    shape = shape_named("needle-like")
    decoder = Decoder(random_model(shape, torch.float32, torch.device("cpu")))
    plans = [Plan.parse(text) for text in ("lazyllm", "lazyllm(keep=1.0)")]
    turns = []
    found = measure_generation(
        decoder, shape, plans, LENGTH, NEW, repeats=2, chunk=16, progress=lambda: turns.append(1)
    )
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
