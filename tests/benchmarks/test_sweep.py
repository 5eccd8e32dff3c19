"""The sweep: whom it asks, in which order, and how its records become rows. Never how long something took."""

from dataclasses import replace

import pytest
from benchmarks.depth import cells, depth, every_layer, grid
from benchmarks.schedule import flops
from benchmarks.sweep import ALL, Run, arms_of, finished_runs, seeded, summarise_sweep, sweep

from digits import Digits
from tiny import tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM, Plan, Stats
from winnow.errors import CapacityError, PlanError

LAZY = "lazyllm(layers=[1], keep=0.5)"
DROP = "random_drop(keep=0.5, seed=3)"
LENGTH = 64


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(tiny_model(), tokenizer=byte_tokenizer(), prefill_chunk=16)


@pytest.fixture(scope="module")
def runs(llm) -> list[Run]:
    return list(sweep(llm, [LAZY, DROP], [Digits(), Digits("more")], [LENGTH], 2, seeds=3))


def test_every_example_is_answered_by_full_attention_every_plan_and_every_seed(runs):
    assert arms_of([LAZY, DROP], 3) == 5
    assert len(runs) == 2 * 2 * 5
    asked = {(run.plan, run.run_as) for run in runs}
    seeds = [f"random_drop(keep=0.5, seed={seed})" for seed in (3, 4, 5)]
    assert asked == {("full", "full"), (LAZY, LAZY), *((DROP, each) for each in seeds)}
    assert [run.run_as for run in runs[5:10]] == [LAZY, *seeds, "full"]  # another goes first


def test_a_plan_without_a_seed_runs_once():
    plan = Plan.parse(LAZY)
    assert seeded(plan, 5) == [plan]


def test_shares_are_the_closed_formulas(llm, runs):
    shape, rows = llm.decoder.shape, summarise_sweep(runs)
    lazy = next(row for row in rows if row.plan == LAZY and row.task == ALL)
    expected = Plan.parse(LAZY).compute.layer_tokens(shape, LENGTH).rows
    assert lazy.rows_share == sum(expected) / (2 * LENGTH)
    assert lazy.flops_share == pytest.approx(flops(expected, shape) / flops([LENGTH] * 2, shape))
    # No layer computes a token twice: what is not prefill's or a new token's row has been revived.
    for run in (run for run in runs if run.plan == LAZY):
        assert run.computed[0] == LENGTH
        assert run.stats.revived_rows == run.computed[1] - run.prefill_rows[1]
    drop = next(row for row in rows if row.plan == DROP and row.task == ALL)
    assert (drop.rows_share, drop.prompt_computed, drop.prompt_computed_last) == (0.5, 0.5, 0.5)
    assert (drop.seeds, drop.examples, lazy.seeds) == (3, 4, 1)


def test_rows_come_by_task_with_full_attention_first(runs):
    rows = summarise_sweep(runs)
    tasks = ("digits", "more", ALL)
    assert [(row.task, row.plan) for row in rows] == [(task, plan) for task in tasks for plan in ("full", LAZY, DROP)]
    for full in rows[::3]:
        shares = (full.rows_share, full.flops_share, full.prompt_computed, full.peak_ratio)
        assert shares == (1, 1, 1, 1)
        assert (full.ttft_speedup, full.generation_speedup, full.revived_rows, full.aux_bytes) == (1, 1, 0, 0)


def test_speedups_are_medians_of_the_same_prompts_and_scores_are_relative_to_full():
    def run(plan, index, score, ttft):
        stats = Stats(prompt_tokens=8, new_tokens=2, ttft_s=ttft, total_s=2 * ttft, total_bytes=10)
        return Run("t", 8, index, plan, plan, plan, score, "", (8, 4), (8, 6), 0.5, stats)

    times = {"full": (1.0, 2.0, 9.0), "x": (0.5, 2.0, 3.0)}  # 2, 1, 3 times as fast
    made = [run(plan, i, s, times[plan][i]) for plan, s in (("x", 0.5), ("full", 0.8)) for i in range(3)]
    _, other = summarise_sweep(made)
    assert (other.ttft_speedup, other.generation_speedup, other.ttft_s) == (2.0, 2.0, 2.0)
    assert other.relative_score == pytest.approx(0.5 / 0.8)
    assert (other.rows_share, other.prompt_computed, other.prompt_computed_last) == (0.75, 0.875, 0.75)
    assert other.low < other.score < other.high
    nothing = summarise_sweep([replace(each, score=0.0) for each in made])
    assert [row.relative_score for row in nothing] == [None, None]


def test_examples_that_not_all_plans_have_answered_are_left_out(runs):
    assert len(finished_runs(runs[:8], 5)) == 5
    assert finished_runs(runs[:4], 5) == []


@pytest.mark.parametrize(
    ("plan", "length", "error"),
    [(LAZY, 40_000, CapacityError), ("lazyllm(layers=[7], keep=0.5)", LENGTH, PlanError)],
)
def test_what_cannot_be_run_is_refused_at_the_call(llm, plan, length, error):
    with pytest.raises(error):
        sweep(llm, [plan], [Digits()], [length], 1)


def test_depth_has_a_cell_for_every_layer_and_share_and_one_for_full_attention(llm):
    assert every_layer(llm.decoder.shape) == [1]
    plans = grid([1], [0.25, 1.0])
    records = list(depth(llm, plans, [Digits()], LENGTH, 3))
    full, quarter, all_of_it = cells(records, plans)
    assert [(c.layer, c.keep, c.examples) for c in (full, quarter, all_of_it)] == [
        (None, None, 3),
        (1, 0.25, 3),
        (1, 1.0, 3),
    ]
    assert all_of_it.score == full.score  # keeping everything is full attention
    assert full.scores == {"digits": full.score}
    rows = [record.stats.rows_computed for record in records if "0.25" in record.plan]
    assert max(rows) < min(record.stats.rows_full for record in records)
