"""`python -m benchmarks together`: who decodes with whom, what is compared, what the floor is made of."""

import json
from functools import partial

import pytest
import torch
from benchmarks.continuous import Continuous, steps_of_all
from benchmarks.speed import STOCK, machine_rates
from benchmarks.together import MIXED, Arm, Turn, arms_of, measure_together, products_s, summarise_together
from benchmarks.together_command import COLUMNS

from command_line import MADE_BY
from tiny import tiny_model
from winnow import LLM, Plan
from winnow.kernels.launch import numba_missing

FULL, STREAMING = Plan(), Plan.parse("streaming(sink=4, recent=16)")


@pytest.fixture(autouse=True)
def _little(monkeypatch):
    """What the machine reads is measured on less than a gigabyte."""
    monkeypatch.setattr("benchmarks.together.machine_rates", partial(machine_rates, size=1000, side=16))


def test_every_plan_alone_and_for_all_and_all_mixed():
    arms = arms_of([FULL, STREAMING], 3)
    assert [(arm.name, arm.plans) for arm in arms] == [
        ("full", (FULL,)), ("full", (FULL,) * 3), (str(STREAMING), (STREAMING,)), (str(STREAMING), (STREAMING,) * 3),
        (MIXED, (FULL, STREAMING, FULL)),
    ]  # fmt: skip
    assert [arm.name for arm in arms_of([FULL], 2)] == ["full", "full"]


def test_units_are_those_of_all_sequences():
    llm = LLM(tiny_model())
    shape, arms, units = llm.decoder.shape, arms_of([FULL, STREAMING], 2), dict[str, float]()
    prompts = [[5] * 40, [6] * 40]
    turns = list(measure_together(llm, arms, prompts, None, steps=2, repeats=2, units=units))
    assert [turn.seconds.keys() for turn in turns] == [{arm.key for arm in arms}] * 2
    each = shape.layers * shape.kv_heads
    assert units[f"{STREAMING}, 1"] == each * 20
    assert units[f"{STREAMING}, 2"] == 2 * each * 20
    # 40 units, then one more for each of the 12 steps, its own included.
    assert units["full, 1"] == each * (40 + 6.5)
    assert units["full, 2"] == pytest.approx(2 * units["full, 1"], abs=2 * each)


def test_what_is_compared_is_of_one_turn():
    arms = arms_of([FULL, STREAMING], 4)
    turn = {"full, 1": 1.0, "full, 4": 2.0, f"{STREAMING}, 1": 3.0, f"{STREAMING}, 4": 4.0, "mixed, 4": 4.0, STOCK: 8.0}
    turns = [Turn({name: scale * second for name, second in turn.items()}, 0.5 * scale, 1.0) for scale in (1, 3, 2)]
    units = dict.fromkeys(turn, 0.5e9)
    full, streaming, mixed, stock = summarise_together(arms, turns, units, unit_bytes=1)
    assert (full.sequences, full.step_s, full.tokens_per_s, full.of_one, full.of_stock) == (4, 4.0, 1.0, 2.0, 4.0)
    assert streaming.of_one == 3.0
    assert mixed.of_one == 2.0  # of the mean of 1 and 3
    assert (full.floor_s, full.of_floor) == (1.5, 8 / 3)
    assert (stock.name, stock.of_one, stock.floor_s, stock.of_stock) == (STOCK, None, None, 1.0)


@pytest.mark.skipif(numba_missing() is not None, reason="the kernels need Numba")
def test_products_are_had_by_themselves_where_the_kernel_takes_the_layers():
    assert (products_s(LLM("needle"), 4) or 0) > 0
    assert products_s(LLM(tiny_model()), 4) is None


def test_only_steps_in_which_all_decode_count():
    early, late = [0.0, 1.0, 9.0, 10.0, 12.0], [9.01, 10.01, 12.01, 13.0]
    assert list(steps_of_all([early, late])) == pytest.approx([1.0, 2.0])


def test_transformers_goes_on_with_its_prompts():
    model = tiny_model().to(torch.bfloat16)
    stock = Continuous(model, [[5] * 70, [6] * 70], 4)
    stock.begin()
    for _ in range(2):
        assert 4 <= len(stock.turn()) <= 5
    stock.close()
    assert model.config._attn_implementation == "sdpa"


def test_table_and_json(bench, document, tmp_path):
    out = tmp_path / "together.json"
    given = ("-l", 40, "--sequences", 2, "--steps", 2, "--repeats", 2, "--text", document)
    result = bench("together", *given, "-p", "full", "-p", STREAMING, "--out", out)
    assert result.code == 0, result.err
    told = json.loads(out.read_text(encoding="utf-8"))
    assert (told["command"], told["complete"], told["stock_error"]) == ("together", True, None)
    assert told.keys() >= MADE_BY
    assert [row["name"] for row in told["summary"]] == ["full", str(STREAMING), MIXED, STOCK]
    assert all(heading.split("\n")[0] in result.out for heading in COLUMNS)


def test_what_transformers_fails_with_is_said(bench, monkeypatch):
    def fails(*_):
        raise RuntimeError("no pages")

    monkeypatch.setattr(Continuous, "begin", fails)
    result = bench("together", "-l", 30, "--sequences", 2, "--steps", 1, "--repeats", 2, "-p", "full")
    assert (result.code, f"{STOCK} is left out: RuntimeError: no pages" in result.out) == (0, True)


def test_an_arm_of_one_and_an_arm_of_many_have_keys_of_their_own():
    assert Arm("full", (FULL,)).key != Arm("full", (FULL, FULL)).key
