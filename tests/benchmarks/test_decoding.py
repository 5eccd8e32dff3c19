"""Whole decodes: what they count, which steps are slow, what is compared with what. Never how long something took."""

import pytest
import torch
from benchmarks.decoding import FULL, Decoding, Taken, measure_decoding, turns_of
from benchmarks.shapes import SHAPES, random_model
from benchmarks.speed import STOCK, Rates
from benchmarks.speed_plots import decoding_claim

from winnow import LLM, Plan

SHAPE = SHAPES["needle-like"]
PER_TOKEN = SHAPE.layers * SHAPE.kv_heads
RATES = Rates(copy_gb_s=10.0, read_gb_s=20.0, gemm_gflop_s=100.0)
LENGTHS, BATCHES, NEW, STOCK_STEPS = (60, 90), (1, 2), 9, 2
SINK, BUDGET, RECENT = 2, 16, 8
EVERY_4 = (
    f"slowfast(budget={BUDGET}, sink={SINK}, recent={RECENT}, recent_mode='sliding', trigger='periodic', interval=4, "
    "selector='attention')"
)


@pytest.fixture(scope="module")
def measured():
    llm = LLM(random_model(SHAPE, torch.float32, torch.device("cpu")))
    plans, turns = [Plan(), Plan.parse(EVERY_4)], []
    found = measure_decoding(
        llm, SHAPE, plans, LENGTHS, BATCHES, new=NEW, repeats=2, stock_steps=STOCK_STEPS, full_steps=NEW,
        progress=turns.append,
    )  # fmt: skip
    each = {(each.plan, each.length, each.batch): each for group in found for each in group}
    assert len(turns) == turns_of(2, 2, 2, repeats=2, stock_steps=STOCK_STEPS) == 2 * 5 * 3
    return each


def test_every_arm_does_all_turns_and_steps(measured):
    arms = [(STOCK, 1), *((plan, batch) for batch in BATCHES for plan in (FULL, EVERY_4))]
    assert list(measured) == [(plan, length, batch) for length in LENGTHS for plan, batch in arms]
    for (plan, *_), each in measured.items():
        assert [len(turn) for turn in each.turns] == [STOCK_STEPS if plan == STOCK else NEW] * 2
        assert all(step.seconds > 0 for turn in each.turns for step in turn)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("length", LENGTHS)
def test_units_and_slow_steps_equal_the_formulas(measured, length, batch):
    # The first decode step is not counted: counted ones are the second and those after, and know 2, 3, ... more tokens.
    known = [length + 2 + step for step in range(NEW)]
    for turn in measured[FULL, length, batch].turns:
        assert [(step.slow, step.units) for step in turn] == [(batch, batch * PER_TOKEN * each) for each in known]
    small = batch * PER_TOKEN * (SINK + BUDGET + RECENT)
    for turn in measured[EVERY_4, length, batch].turns:
        slow = [(2 + step) % 4 == 0 for step in range(NEW)]
        assert [step.slow for step in turn] == [batch * each for each in slow]
        units = [batch * PER_TOKEN * each if is_slow else small for each, is_slow in zip(known, slow, strict=True)]
        assert [step.units for step in turn] == units
    for turn in measured[STOCK, length, 1].turns:
        assert [step.units for step in turn] == [PER_TOKEN * each for each in known[:STOCK_STEPS]]


def test_the_records_say_what_slow_and_fast_steps_read(measured):
    record = measured[EVERY_4, 60, 2].to_dict(RATES, measured)
    weights = SHAPE.layers * SHAPE.layer_weights + SHAPE.head_weights
    units = 2 * PER_TOKEN * (SINK + BUDGET + RECENT)
    read = 4 * (weights + 2 * SHAPE.hidden) + units * 2 * SHAPE.head_dim * 4
    assert (record["fast"]["count"], record["fast"]["units"], record["fast"]["bytes"]) == (7, units, read)
    assert record["fast"]["gb_s"] == pytest.approx(read / 1e9 / record["fast"]["seconds"])
    assert record["fast"]["share_of_copy"] == pytest.approx(record["fast"]["gb_s"] / 10)
    assert (record["slow"]["count"], record["slow"]["units"]) == (2, 2 * PER_TOKEN * (64 + 68) / 2)
    assert measured[FULL, 60, 1].to_dict(RATES, measured)["fast"] is None


def steps(*seconds, slow=0):
    return tuple(Taken(each, slow, 100) for each in seconds)


def arm(plan, length, batch, *turns):
    return Decoding(plan, length, batch, turns, fixed_bytes=1000, unit_bytes=10)


def test_what_is_compared_with_what():
    every = [
        arm(STOCK, 10, 1, steps(40.0, slow=1), steps(60.0, slow=1)),
        arm(FULL, 10, 1, steps(4.0, 6.0, slow=1), steps(9.0, 11.0, slow=1)),
        arm("a", 10, 1, steps(1.0, 1.0) + steps(2.5, slow=1), steps(2.0, 2.0) + steps(5.0, slow=1)),
        arm("a", 10, 4, steps(3.0), steps(6.0)),
        arm("a", 20, 1, steps(3.0), steps(6.0)),
    ]
    others = {(each.plan, each.length, each.batch): each for each in every}
    stock, full, alone, four, longer = (each.to_dict(RATES, others) for each in every)
    assert (stock["ratio_to_full"], stock["ratio_to_stock"], stock["growth"]) == (None, 1.0, 1.0)
    assert (full["ratio_to_full"], full["tpot_s"], full["tpot_spread_s"]) == (1.0, 7.5, 2.5)
    assert alone["ratio_to_full"] == pytest.approx((1.5 / 5 + 3 / 10) / 2)  # in the same turn, then the median
    assert alone["ratio_to_stock"] == pytest.approx((1.5 / 40 + 3 / 60) / 2)
    assert (alone["fast"]["seconds"], alone["slow"]["seconds"], alone["slow"]["count"]) == (1.5, 3.75, 1)
    assert alone["fast"]["gb_s"] == pytest.approx(2000 / 1e9 / 1.5)
    assert (four["ratio_to_full"], four["ratio_to_stock"]) == (None, None)
    assert (four["tokens_per_s"], four["tokens_of_one"]) == (4 / 4.5, 4 / 2)
    assert (longer["growth"], longer["tokens_of_one"], longer["slow"]) == (4.5 / 2.25, 1.0, None)


def test_the_title_names_the_fastest_plan():
    def record(plan, length, batch, ratio):
        return {"plan": plan, "length": length, "batch": batch, "ratio_to_full": ratio}

    records = [record(STOCK, 90, 1, None), record("full", 90, 1, 1.0), record("a(x=1)", 90, 1, 0.5)]
    records += [record("b", 90, 1, 0.7), record("c", 90, 4, 0.1), record("d", 60, 1, 0.1)]
    assert decoding_claim(records) == "a: 0.50x full attention's time per token after 90 tokens"
    assert decoding_claim(records[:2]) == "Full attention after 90 tokens"
