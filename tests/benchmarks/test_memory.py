"""What long prompts cost in memory: counted bytes equal their formulas, and every run is alone in its process."""

import gc
import mmap
from pathlib import Path

import pytest
import torch
from benchmarks.fresh import ProcessKilled, in_fresh_process
from benchmarks.memory import LeftOut, MemoryRun, measure_here, measure_memory, runnable, summarise_memory
from benchmarks.resident import CLEAR, LifelongPeak, ResidentMemory, gauge_of
from benchmarks.source import Source

from tiny import POSITIONS, tiny_model
from winnow import LLM, Plan
from winnow.cli.options import ModelOptions
from winnow.engine.freed import give_back
from winnow.errors import CapacityError, InputError

HEADS = "random_heads(budget=64, chunk=32, local=8)"
LENGTH, STEPS = 300, 4
TOKEN_BYTES = 2 * 2 * 2 * 8 * 4  # layers, KV heads, key and value, head_dim, float32

linux = pytest.mark.skipif(not CLEAR.exists(), reason="the peak of resident memory can be begun anew on Linux alone")


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(tiny_model(), prefill_chunk=32)


@pytest.mark.parametrize(
    ("plan", "peak", "end", "bound"),
    [
        (HEADS, 64 + 32, 64 + 8 + STEPS, 64 + 32),
        ("random_heads(budget=64, chunk=32, local=40)", 64 + 40 + STEPS, 64 + 40 + STEPS, 64 + 40 + STEPS),
        ("streaming(sink=4, recent=60)", 4 + 60 + 32, 4 + 60, 4 + 60 + 32),
        ("full", LENGTH + STEPS, LENGTH + STEPS, None),
    ],
)
def test_counted_bytes_equal_the_formula(llm, plan, peak, end, bound):
    done = []
    run = measure_here(llm, Plan.parse(plan), LENGTH, steps=STEPS, progress=done.append)
    assert (run.plan, run.length, sum(done)) == (plan, LENGTH, LENGTH)
    assert (run.peak_cache_bytes, run.cache_bytes) == (peak * TOKEN_BYTES, end * TOKEN_BYTES)
    assert run.bound_bytes == (None if bound is None else bound * TOKEN_BYTES)
    assert run.allocated_bytes >= run.cache_bytes
    # A float32 score per unit, and its position, in which KV heads differ.
    assert run.aux_bytes == ((4 + 8) * peak * 2 * 2 if "random" in plan else 0)
    assert run.total_bytes == run.peak_cache_bytes + run.aux_bytes
    assert len(run.steps_s) == STEPS
    assert min(run.steps_s) > 0
    assert run.ttft_s > 0
    assert run.peak_bytes >= run.before_bytes > 0


@pytest.mark.parametrize("plan", [HEADS, "streaming(sink=4, recent=60)"])
def test_a_prompt_too_short_for_the_bound_is_bound_by_its_length(llm, plan):
    run = measure_here(llm, Plan.parse(plan), 20, steps=STEPS)
    assert run.bound_bytes == run.peak_cache_bytes == (20 + STEPS) * TOKEN_BYTES


def test_a_long_tail_gets_a_longer_warm_up(llm):
    plan = "random_heads(budget=200, chunk=32, local=200)"  # four chunks of 32 are all tail
    assert measure_here(llm, Plan.parse(plan), LENGTH, steps=STEPS).peak_cache_bytes == (300 + STEPS) * TOKEN_BYTES


@linux
def test_resident_memory_is_of_its_own_span():
    gauge = ResidentMemory()
    gc.collect()  # what other tests left must not go in between, nor an engine's thread give back what is free
    give_back()
    before = gauge.begin()
    with mmap.mmap(-1, 64 * 2**20) as block:  # malloc may find as much among what is free, and then keeps it
        torch.frombuffer(block, dtype=torch.uint8).fill_(1)
        assert gauge.peak() - before > 60 * 2**20
    assert gauge.begin() < before + 16 * 2**20
    assert gauge.peak() < before + 16 * 2**20
    assert 1 / 8 < LifelongPeak().peak() / gauge.peak() < 8  # both are in bytes


def test_the_gauge_says_what_it_measures(monkeypatch):
    monkeypatch.setattr("benchmarks.resident.CLEAR", Path("/nowhere"))
    assert gauge_of(torch.device("cpu")).name.endswith("(ru_maxrss)")
    assert gauge_of(torch.device("cuda")).name.startswith("GPU memory")


def test_full_attention_is_left_out_with_a_reason_and_other_plans_are_refused(llm):
    full, heads = Plan(), Plan.parse(HEADS)
    jobs, left = runnable(llm, [full, heads], [40_000, 500, 400], full_up_to=450)
    assert jobs == [(full, 400), (heads, 400), (heads, 500), (heads, 40_000)]
    assert [(each.plan, each.length) for each in left] == [("full", 500), ("full", 40_000)]
    assert "450 tokens" in left[0].reason
    jobs, left = runnable(llm, [full], [POSITIONS], full_up_to=10**6)
    assert jobs == []
    assert f"{POSITIONS} positions" in left[0].reason
    with pytest.raises(CapacityError, match="40000 tokens"):
        runnable(llm, [Plan.parse('random_heads(positions="original")')], [40_000], full_up_to=10**6)
    with pytest.raises(InputError, match="local=50"):
        runnable(llm, [Plan.parse("random_heads(budget=64, local=50)")], [40], full_up_to=10**6)


def test_random_weights_have_the_positions_that_are_asked_for():
    for positions, found in ((300_000, 300_000), (100, 131_072)):
        assert Source(ModelOptions(), "needle-like", positions).load().decoder.shape.max_positions == found


def made(plan, length, seconds, peak):
    return MemoryRun(plan, length, seconds, 1, 2, 3, 4, 5, None, peak - 1, peak, (0.1, 0.3, 0.2), "")


def test_rows_are_medians_and_grow_from_the_shortest():
    runs = [made("b", 20, s, p) for s, p in ((1.0, 300), (9.0, 330), (2.0, 310))]
    runs += [made("b", 10, 4.0, 200), made("a", 20, 1.0, 500)]
    rows = summarise_memory(runs)
    assert [(row.plan, row.length, row.repeats) for row in rows] == [("b", 10, 1), ("b", 20, 3), ("a", 20, 1)]
    assert [row.growth for row in rows] == [1.0, 310 / 200, 1.0]
    assert (rows[1].tokens_per_s, rows[1].ttft_s, rows[1].step_s, rows[1].before_bytes) == (10.0, 2.0, 0.2, 309)


def die(progress):
    import os
    import signal

    os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C is for the process that waits
    progress(7)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.usefixtures("forking")
def test_a_killed_process_is_left_out_and_the_others_go_on(monkeypatch):
    told = []
    with pytest.raises(ProcessKilled, match="SIGKILL"):
        in_fresh_process(die, progress=told.append)
    assert told == [7]

    def ended(function, source, plan, length, progress):
        if length == 10:
            raise ProcessKilled("SIGKILL")
        return made(str(plan), length, 1.0, 1)

    monkeypatch.setattr("benchmarks.memory.in_fresh_process", ended)
    found = list(measure_memory(Source(ModelOptions()), [(Plan(), 10), (Plan(), 20)], repeats=2))
    assert [type(each) for each in found] == [LeftOut, MemoryRun] * 2
    assert "SIGKILL" in found[0].reason
