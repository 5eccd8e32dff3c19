from dataclasses import replace

import pytest

from winnow import Stats
from winnow.evaluation.accuracy import DepthScore, accuracies, wilson
from winnow.evaluation.evaluate import Record


def record(plan: str, score: float, depths: tuple[float, ...], found: tuple[bool, ...]) -> Record:
    return Record("t", 8, 0, 0, None, "", (), found, "", (), score, plan, depths, "stop", Stats())


@pytest.mark.parametrize(
    ("share", "trials", "low", "high"),
    [(0.5, 10, 0.2366, 0.7634), (0.0, 10, 0.0, 0.2775), (1.0, 10, 0.7225, 1.0), (0.9, 100, 0.8256, 0.9448)],
)
def test_wilson_intervals(share, trials, low, high):
    assert wilson(share, trials) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(("share", "trials"), [(0.5, 0), (1.1, 10), (-0.1, 10)])
def test_wilson_refuses_what_is_no_share(share, trials):
    with pytest.raises(ValueError, match="share="):
        wilson(share, trials)


def test_each_needle_counts_at_the_nearest_depth():
    records = [
        record("full", 0.5, (0.1, 0.9), (True, False)),
        record("full", 1.0, (0.2, 0.4), (True, True)),
        record("x", 0.0, (0.95, 0.6), (False, False)),
    ]
    full, other = accuracies(records, [1.0, 0.0, 0.5])
    assert (full.plan, full.score, full.examples) == ("full", 0.75, 2)
    assert full.by_depth == (DepthScore(0.0, 1.0, 2), DepthScore(0.5, 1.0, 1), DepthScore(1.0, 0.0, 1))
    assert (other.plan, other.by_depth) == ("x", (DepthScore(0.5, 0.0, 1), DepthScore(1.0, 0.0, 1)))


def test_what_stands_everywhere_in_a_text_has_no_depth():
    [told] = accuracies([record("full", 0.5, (), (True, False)), record("full", 1.0, (), (True, True))], [0.0, 0.5])
    assert (told.score, told.by_depth) == (0.75, ())


def test_the_loop_rate_is_the_share_of_answers_stuck_at_their_limit():
    stuck = replace(record("full", 0.0, (), ()), token_ids=(4, 5, 5, 5), finish_reason="length")
    ended = replace(stuck, finish_reason="stop")
    free = replace(stuck, token_ids=(4, 5, 6, 5))
    [found] = accuracies([stuck, ended, free, stuck], [0.5])
    assert found.loop_rate == found.to_dict()["loop_rate"] == 0.5
    assert [each.to_dict()["loops"] for each in (stuck, ended, free)] == [True, False, False]


@pytest.mark.parametrize("trials", range(1, 60))
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_interval_holds_its_share(share, trials):
    low, high = wilson(share, trials)
    assert 0.0 <= low <= share <= high <= 1.0
