"""`python -m benchmarks arrival`: which steps are gaps, what ends an arrival, what is compared with what."""

import json

import pytest
from benchmarks.arrival import ALONE, Arrived, Setting, measure_arrival, summarise_arrival
from benchmarks.arrival_command import COLUMNS, plot_arrival

from command_line import MADE_BY
from tiny import tiny_model
from winnow import LLM

PROMPTS, NEWCOMER = [[5] * 20, [6] * 20], [7] * 100


def test_gaps_are_the_steps_until_the_first_token_of_the_newcomer():
    llm, told = LLM(tiny_model()), []
    settings = [(Setting(max_step_tokens=12), 2), (Setting(), 1), (Setting(max_step_s=60.0), 1)]
    found = list(measure_arrival(llm, settings, PROMPTS, NEWCOMER, patience_s=60, progress=told.append))
    assert [each.setting for each in found] == [
        "max_step_tokens=12", ALONE, "max_step_s=60.000", "max_step_tokens=12",
    ]  # fmt: skip
    assert len(told) == 4
    assert len(found[0].gaps_s) == 10  # ten tokens of the prompt beside two that decode
    assert (found[1].gaps_s, found[1].undisturbed_s) == ((), None)
    assert len(found[2].gaps_s) == 3  # 30, 58, 12: each with two that decode whole tiles, at most twice as many
    assert all(each.tokens == 100 and each.ttft_s for each in found)


def test_a_newcomer_that_takes_too_long_is_given_up():
    [each] = measure_arrival(LLM(tiny_model()), [(Setting(max_step_tokens=3), 1)], PROMPTS, NEWCOMER, patience_s=1e-9)
    assert (each.ttft_s, each.tokens) == (None, 0)


def test_a_gap_is_compared_within_its_turn():
    arrived = [
        Arrived(ALONE, None, (), 2.0, 10),
        Arrived("a", 1.0, (1.0, 3.0, 2.0), 4.0, 10),
        Arrived("a", 2.0, (2.0, 10.0, 2.0), 6.0, 10),
        Arrived("a", 1.0, (4.0, 4.0, 4.0), 8.0, 10),
        Arrived("b", 1.0, (4.0,), None, 5),
    ]
    a, b = summarise_arrival(arrived, 10)
    assert (a.turns, a.undisturbed_s, a.longest, a.worst, a.typical) == (3, 1.0, 4.0, 5.0, 2.0)
    assert (a.ttft_s, a.of_alone, a.computed) == (6.0, 3.0, 1.0)
    assert (b.ttft_s, b.of_alone, b.computed) == (None, None, 0.5)


def test_table_json_and_picture(bench, tiny, tmp_path):
    pytest.importorskip("matplotlib")
    out, plot = tmp_path / "arrival.json", tmp_path / "arrival.png"
    result = bench(
        "arrival", "-m", tiny, "-l", 90, "--running", 20, "--sequences", 2, "--repeats", 2, "--max-step-tokens", 9,
        "--max-step-tokens", 32, "--out", out, "--plot", plot,
    )  # fmt: skip
    assert result.code == 0, result.err
    told = json.loads(out.read_text(encoding="utf-8"))
    assert (told["command"], told["complete"], len(told["records"])) == ("arrival", True, 6)
    assert told.keys() >= MADE_BY
    assert [row["setting"].partition("=")[0] for row in told["summary"]] == ["max_step_s", *["max_step_tokens"] * 2]
    assert plot.stat().st_size > 1000
    assert all(heading.split("\n")[0] in result.out for heading in COLUMNS)


def test_a_picture_can_lack_what_was_given_up(tmp_path):
    pytest.importorskip("matplotlib")
    found = [Arrived(ALONE, None, (), 2.0, 10), Arrived("s", 1.0, (4.0,), None, 5), Arrived("t", 1.0, (4.0,), 3.0, 10)]
    plot_arrival(tmp_path / "a.png", summarise_arrival(found, 10))
    assert (tmp_path / "a.png").exists()
