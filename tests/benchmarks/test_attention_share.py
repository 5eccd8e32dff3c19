"""`python -m benchmarks attention`: what is taken from what, and over what."""

from functools import partial

import pytest
from benchmarks.attention import Turn, measure_attention, summarise_attention
from benchmarks.speed import machine_rates

from winnow import LLM, Plan

PLANS = [Plan(), Plan.parse("quantized(bits=4, group=32, residual=0)")]


def test_bytes_are_those_of_the_units_that_steps_read(monkeypatch):
    monkeypatch.setattr("benchmarks.attention.machine_rates", partial(machine_rates, size=1000, side=16))
    llm, held = LLM("needle"), dict[str, int]()
    shape = llm.decoder.shape
    turns = list(measure_attention(llm, PLANS, 64, steps=2, repeats=3, held=held))
    assert [turn.step_s.keys() for turn in turns] == [held.keys()] * 3
    assert held["full"] == shape.layers * shape.kv_heads * shape.unit_bytes * (64 + 2)
    codes = 2 * shape.head_dim * (4 / 8 + 4 / 32)
    assert held[str(PLANS[1])] == shape.layers * shape.kv_heads * (64 * codes + 2 * shape.unit_bytes)


def test_attention_is_the_step_less_the_one_over_next_to_none():
    turns = [
        Turn({"full": 5.0 * scale, "codes": 3.0 * scale}, {"full": scale, "codes": 2.0 * scale}, 4.0 / scale)
        for scale in (1, 2, 4)
    ]
    full, codes = summarise_attention(turns, {"full": 16 * 10**9, "codes": 2 * 10**9})
    assert (full.step_s, full.attention_s, full.step_x, full.attention_x) == (10, 8, 1, 1)
    assert (codes.step_x, codes.step_low, codes.step_high) == pytest.approx((0.6,) * 3)
    assert (codes.attention_s, codes.attention_x) == (2, 0.25)
    assert (full.gb_s, codes.gb_s) == (2, 1)
    assert (full.of_rate, codes.of_rate) == (1, 0.5)


def test_a_reader_is_refused(bench):
    result = bench("attention", "-p", "quest(budget=64)")
    assert result.code == 2
    assert "quest(budget=64) reads a part of its units" in result.err
