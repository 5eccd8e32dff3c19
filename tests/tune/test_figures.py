"""Limits, bounds, frontier, clock: everything that needs no model."""

import math
import statistics

import pytest

from winnow.errors import InputError
from winnow.tune.clock import Clock, OutOfTime
from winnow.tune.frontier import _margin, figures_of, frontier, take_turns
from winnow.tune.limits import Limits
from winnow.tune.measure import Measurement


def measurement(plan="p", prompt=0, kl=0.1, agreement=1.0, rows=10, units=10, total=2**20, pace=1.0):
    return Measurement(plan, prompt, kl, agreement, rows, 10, units, 10, total, 1.0, 0.1, pace)


def row(plan, **values):
    return figures_of([measurement(plan, i, **values) for i in range(2)])


def test_figures_are_means_with_bounds_and_the_most_memory():
    got = figures_of([measurement(kl=0.1, agreement=1.0, total=2**20), measurement(kl=0.3, agreement=0.8, total=2**21)])
    margin = 3.078 * math.sqrt(0.02) / math.sqrt(2)
    assert got.kl == pytest.approx(0.2)
    assert got.kl_bound == pytest.approx(0.2 + margin)
    assert got.agreement_bound == pytest.approx(0.9 - margin)
    assert (got.total_mib, got.rows_share, got.units_share, got.prompts) == (2.0, 1.0, 1.0, 2)


def test_bounds_follow_students_t_to_any_number():
    """1.3406 for 16 values, 1.3368 for 17, 1.3156 for 25: no jump where the table ends."""
    for count, quantile in ((16, 1.3406), (17, 1.3368), (25, 1.3178), (1000, 1.2824)):
        values = [0.0, 1.0] * (count // 2) + [0.5] * (count % 2)
        unit = statistics.stdev(values) / math.sqrt(count)
        assert _margin(values) / unit == pytest.approx(quantile, abs=0.004)


def test_one_prompt_proves_nothing():
    assert Limits(max_kl=1000).excess(figures_of([measurement(kl=0)]).careful)


def test_the_frontier_drops_what_is_beaten_and_keeps_ties():
    rows = [row("a", kl=0.1), row("b", kl=0.2), row("c", kl=0.2, units=5), row("d", kl=0.1), row("e", kl=0.3, rows=5)]
    assert [each.plan for each in frontier(rows)] == ["a", "d", "c", "e"]


def test_keys_take_turns():
    assert take_turns([(1, 9), (2, 8), (3, 0)], [lambda x: x[0], lambda x: x[1]], 2) == [(1, 9), (3, 0)]


def test_limits_are_missed_by_factors():
    limits = Limits(max_kl=0.1, min_agreement=0.9, target_ttft=2.0)
    assert limits.excess({"kl": 0.2, "agreement": 0.95}) == {"max_kl": pytest.approx(math.log(2))}
    assert limits.excess({"kl": 0.1, "agreement": 0.9, "ttft_s": 2.0, "total_mib": 1e9}) == {}
    assert limits.missed({"kl": 0.0, "agreement": 0.45}) == ["agreement 0.45 (at least 0.9 was asked for)"]


def test_loosened_limits_double_kl_and_disagreement():
    loose = Limits(max_kl=0.1, min_agreement=0.9, max_cache_mib=3).loosened(2)
    assert loose.given == pytest.approx({"max_kl": 0.2, "min_agreement": 0.8, "max_cache_mib": 3})


def test_fidelity_has_a_limit_even_where_none_is_given():
    assert Limits(max_cache_mib=1).with_default().max_kl == 0.01
    assert Limits(min_agreement=0.9).with_default().max_kl is None


@pytest.mark.parametrize(
    "bad", [{"max_kl": 0}, {"min_agreement": 1.1}, {"target_tpot": -1}, {"max_cache_mib": math.inf}]
)
def test_limits_out_of_range(bad):
    with pytest.raises(InputError, match="must be above 0"):
        Limits(**bad)


def test_a_run_that_would_end_too_late_is_not_begun():
    now = [0.0]
    clock = Clock(10, lambda: now[0])
    with clock.run(0.5):
        now[0] = 3.0
    with pytest.raises(OutOfTime), clock.run(0.5):
        raise AssertionError("3 + 3 seconds are more than 5")
    with clock.run(1.0):
        now[0] = 4.0
