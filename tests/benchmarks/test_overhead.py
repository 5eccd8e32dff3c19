"""`python -m benchmarks overhead`: kernels are found, timed and put back; what is counted; what the table shows."""

import json

import pytest
from benchmarks.overhead import Spent, measure_overhead, python_calls, summarise_overhead, watched
from benchmarks.overhead_command import COLUMNS

from command_line import MADE_BY
from winnow import LLM, Plan, SamplingParams
from winnow.kernels import packed
from winnow.kernels.launch import numba_missing

pytestmark = pytest.mark.skipif(numba_missing() is not None, reason="the kernels need Numba")
FULL = Plan()


@pytest.fixture(scope="module")
def llm():
    return LLM("needle")


def test_kernels_are_timed_within_and_put_back_after(llm):
    from winnow.kernels.layers import cpu

    before = cpu.layers_kernel
    with llm.engine() as engine:
        engine.add([1, 2, 3], SamplingParams(max_tokens=8, ignore_eos=True), plan=FULL)
        engine.step()
        with watched() as clock:
            assert cpu.layers_kernel is not before
            engine.step()
            entered = clock.calls
            engine.step()
            assert clock.calls == 2 * entered > 0
            assert clock.seconds > 0
        engine.step()
        assert clock.calls == 2 * entered
    assert cpu.layers_kernel is before
    assert packed._kernels()[0] is packed.cpu.product_kernel


def test_kernels_are_put_back_after_an_error():
    from winnow.kernels.attend import cpu_decode

    before = cpu_decode.decode_kernel
    with pytest.raises(KeyboardInterrupt), watched():
        raise KeyboardInterrupt
    assert cpu_decode.decode_kernel is before


def test_calls_of_python_functions_are_counted_and_no_others():
    def inner():
        return len([1])

    def outer():
        return inner() + inner()

    assert python_calls(outer) == 3


def test_every_turn_has_as_many_steps_of_each_kind(llm):
    told = []
    found = list(
        measure_overhead(llm, [FULL, Plan.parse("h2o(budget=16)")], [1] * 40, steps=3, repeats=2, progress=told.append)
    )
    assert [each.plan for each in found] == ["full", str(found[1].plan), found[1].plan, "full"]
    assert all(len(each.plain) == len(each.watched) == len(each.kernels) == 3 for each in found)
    assert all(0 < inside < whole for each in found for whole, inside in zip(each.watched, each.kernels, strict=True))
    assert found[1].entered > found[0].entered  # its layers are taken one by one
    assert len(told) == 4


def test_what_is_outside_is_taken_step_by_step():
    spent = [Spent("full", (1.0, 3.0), (2.0, 6.0), (1.0, 3.0), 2.0, 60), Spent("full", (2.0,), (4.0,), (2.0,), 3.0, 80)]
    [row] = summarise_overhead(spent, 10)
    assert (row.step_s, row.watched_s, row.kernels_s) == (2.0, 4.0, 2.0)
    assert (row.outside_s, row.least_s, row.kernels, row.calls, row.calls_per_layer) == (2.0, 1.0, 2.5, 60, 6.0)


def test_table_and_json(bench, tmp_path):
    out = tmp_path / "overhead.json"
    result = bench("overhead", "-l", 20, "--steps", 2, "--repeats", 2, "-p", "streaming(recent=8)", "--out", out)
    assert result.code == 0, result.err
    told = json.loads(out.read_text(encoding="utf-8"))
    assert (told["command"], told["complete"], len(told["records"])) == ("overhead", True, 4)
    assert told.keys() >= MADE_BY
    assert [row["plan"] for row in told["summary"]] == ["full", "streaming(recent=8)"]
    assert all(row["calls_per_layer"] > 0 for row in told["summary"])
    assert all(heading.split("\n")[0] in result.out for heading in COLUMNS)
