"""`python -m benchmarks steps`: whose text is fed, what is compared, what is left out; never how long it took."""

import json

import pytest
from benchmarks.document import document_ids, pieces
from benchmarks.steps import Stepped, measure_steps, rotated, summarise_steps
from benchmarks.steps_command import COLUMNS

from command_line import MADE_BY
from tiny import tiny_model
from winnow import LLM, Plan
from winnow.errors import InputError

PLANS = ("full", "streaming(sink=4, recent=16)", "sink_recent(sink=4, recent=16)")


def test_every_plan_steps_through_the_same_tokens_and_reads_what_it_keeps():
    llm, told = LLM(tiny_model()), []
    shape, plans = llm.decoder.shape, [Plan.parse(plan) for plan in PLANS]
    found = list(measure_steps(llm, plans, range(5, 105), [40, 60], steps=3, repeats=2, progress=told.append))
    assert [[each.length for each in group] for group in found] == [[40] * 3, [60] * 3]
    assert all(len(each.seconds) == 2 and len(each.seconds[0]) == 3 for group in found for each in group)
    assert sum(told) == 3 * (40 + 60) + 2 * 3 * 2 * 3
    each_token = shape.layers * shape.kv_heads
    full, streaming, sink_recent = found[0]
    assert full.units == each_token * (40 + 8 + 3.5)  # after 8 steps of warming up, of which none is counted
    assert streaming.units == each_token * 20
    assert each_token * 20 <= sink_recent.units <= each_token * 21


def test_a_ratio_is_taken_within_a_turn():
    def of(plan, *turns):
        return Stepped(plan, 9, tuple((second,) * 3 for second in turns), 1.0)

    _, row = summarise_steps([of("full", 1.0, 10.0, 2.0), of("other", 2.0, 5.0, 2.0)])
    assert (row.ratio, row.ratio_low, row.ratio_high) == (1.0, 0.5, 2.0)
    assert (row.median_s, row.min_s, row.mean_s) == (2.0, 2.0, 3.0)


def test_another_arm_is_first_each_time():
    assert [rotated(["a", "b", "c"], turn)[0] for turn in range(4)] == ["a", "b", "c", "a"]


def test_pieces_lie_evenly_over_the_text():
    assert pieces([*range(10)], 3, 4) == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]
    assert pieces([1, 2], 2, 2) == [[1, 2], [1, 2]]
    assert pieces([1, 2, 3], 1, 2) == [[1, 2]]


def test_a_text_that_is_too_short_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("Ten.", encoding="utf-8")
    llm = LLM("needle")
    with pytest.raises(InputError, match="20 are needed"):
        document_ids(llm, tmp_path / "a.txt", 20)
    with pytest.raises(InputError, match="no tokenizer"):
        document_ids(LLM(tiny_model()), None, 20)
    assert len(document_ids(llm, None, 20)) == 20


def test_table_and_json(bench, document, tmp_path):
    out = tmp_path / "steps.json"
    arms = [part for plan in PLANS[1:] for part in ("-p", plan)]
    result = bench("steps", "-l", 40, "-l", 30, "--steps", 2, "--repeats", 2, "--text", document, *arms, "--out", out)
    assert result.code == 0, result.err
    told = json.loads(out.read_text(encoding="utf-8"))
    assert (told["command"], told["complete"], told["skipped"]) == ("steps", True, {})
    assert told.keys() >= MADE_BY
    assert [(row["plan"], row["length"]) for row in told["summary"]] == [(p, n) for n in (30, 40) for p in PLANS]
    assert all(heading.split("\n")[0] in result.out for heading in COLUMNS)


def test_by_default_what_the_model_cannot_run_is_left_out_with_the_reason(bench, tiny):
    result = bench("steps", "-m", tiny, "-l", 40, "--steps", 1, "--repeats", 2, "--json")
    assert result.code == 0, result.err
    plans = {row["plan"] for row in result.json["summary"]}
    assert plans.isdisjoint(result.json["skipped"])
    assert {"full", "quest(budget=512)"} <= plans | result.json["skipped"].keys()
    assert all(result.json["skipped"].values())
