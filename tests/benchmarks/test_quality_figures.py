"""Figures of the protocol: pairs, intervals, repeated questions, costs, and the choice of settings."""

import math

import numpy as np
import pytest
from benchmarks.fidelity_by_domain import Interval
from benchmarks.quality.arms import Grid
from benchmarks.quality.choose import choose
from benchmarks.quality.figures import ALL, ENOUGH, paired_interval, score_rows, window_rows
from benchmarks.quality.plot import Point, frontier, plot_quality

from winnow.errors import InputError

NAMES = ("rows_computed", "units_read", "pairs_read", "total_bytes", "cache_bytes", "held_bytes")


def costs(share):
    """Of full attention's 1,000 of everything."""
    whole = {"rows_full": 1000, "units_full": 1000, "pairs_full": 0}
    return {**dict.fromkeys(NAMES, int(1000 * share)), **whole}


def answer(arm, index, score, *, task="t", share=1.0, question=None):
    return {
        "kind": "answer", "arm": arm, "plan": arm, "task": task, "length": 512, "index": index, "score": score,
        "question": question or f"question {index}", "answers": ["x"], "costs": costs(share),
    }  # fmt: skip


def window(arm, index, kl, *, domain="d", share=1.0, nll=2.0):
    return {
        "kind": "window", "arm": arm, "plan": arm, "domain": domain, "length": 512, "index": index, "kl": kl,
        "text": f"text {index}", "top1": 1 - kl, "nll_full": 2.0, "nll_plan": nll, "costs": costs(share),
    }  # fmt: skip


def test_the_interval_is_bonett_and_prices_of_scores_of_0_and_1():
    """Wald's interval of the shares (b + 1) / (n + 2) and (c + 1) / (n + 2), of b pairs won and c lost among n."""
    b, c, n = 7, 3, 60
    found = paired_interval([1.0] * b + [-1.0] * c + [0.0] * (n - b - c))
    up, down = (b + 1) / (n + 2), (c + 1) / (n + 2)
    middle, half = up - down, 1.959964 * math.sqrt((up + down - (up - down) ** 2) / (n + 2))
    assert (found.mean, found.low, found.high) == pytest.approx((4 / 60, middle - half, middle + half))


def test_the_interval_is_no_point_where_no_pair_differs():
    found = paired_interval([0.0] * 100)
    assert (found.mean, found.low) == (0, -found.high)
    assert found.high == pytest.approx(1.959964 * math.sqrt(2) / 102)


@pytest.mark.parametrize(("won", "lost"), [(0.0, 0.02), (0.05, 0.05), (0.1, 0.3)])
def test_the_interval_holds_the_true_difference_about_as_often_as_it_says(won, lost):
    draw, held, tries = np.random.default_rng(0), 0, 2000
    for _ in range(tries):
        sample = draw.choice([1.0, -1.0, 0.0], p=[won, lost, 1 - won - lost], size=100)
        found = paired_interval(list(sample))
        held += found.low <= won - lost <= found.high
    assert held / tries >= 0.93


def test_scores_are_paired_with_another_arm_where_that_is_asked_for_and_costs_with_full_attention():
    records = [answer("full", i, 1.0) for i in range(8)] + [
        answer("control", i, float(i < 6), share=0.5) for i in range(7)
    ]
    records += [answer("pop", i, float(i < 4), share=0.25) for i in range(8)]
    full, control, pop = score_rows(records, against="control")
    assert (control.difference.mean, control.costs["rows"], control.full) == (0, 0.5, 6 / 7)
    assert (pop.questions, pop.full, pop.costs["rows"]) == (7, 6 / 7, 0.25)  # the eighth the control has not answered
    assert (pop.difference.mean, full.difference.mean) == pytest.approx((-2 / 7, 1 / 7))


def test_scores_are_paired_with_full_attention_on_the_same_question():
    records = [answer("full", i, float(i < 6)) for i in range(8)]
    records += [answer("pop", i, float(i in (0, 1, 7)), share=0.5) for i in range(8)]
    records += [answer("pop", 99, 1.0)]  # full attention has not answered it
    full, pop = score_rows(records)
    assert (full.arm, full.difference.mean, full.costs["rows"], full.few) == ("full", 0, 1, True)
    assert (pop.questions, pop.score, pop.full) == (8, 3 / 8, 6 / 8)
    assert pop.difference.mean == pytest.approx((1 - 4) / 8)
    assert pop.costs == {"rows": 0.5, "units": 0.5, "pairs": None, "bytes": 0.5, "held": 0.5, "after": 0.5}
    for each in records:  # of before it was counted
        del each["costs"]["held_bytes"]
    assert score_rows(records)[1].costs["after"] is None


@pytest.mark.parametrize(
    ("rows", "full", "other"),
    [(score_rows, answer("full", 3, 1.0), answer("pop", 3, 1.0, question="another one")),
     (score_rows, answer("full", 3, 1.0), {**answer("pop", 3, 1.0), "answers": ["y"]}),
     (window_rows, window("full", 3, 0.0), {**window("pop", 3, 0.1), "text": "another one"})],
)  # fmt: skip
def test_records_of_other_data_are_not_paired(rows, full, other):
    with pytest.raises(InputError, match=r"pop and full were asked different things at [td] 512 3; .* of one --data"):
        rows([full, other])


def test_a_question_that_is_asked_again_counts_once():
    many = [answer(arm, i, float(arm == "pop"), question=f"q {i % 5}") for i in range(200) for arm in ("full", "pop")]
    [_, pop] = score_rows(many)
    assert (pop.questions, pop.different, pop.few) == (200, 5, True)
    assert (pop.difference.low, pop.difference.high) == pytest.approx(
        (paired_interval([1.0] * 5).low, paired_interval([1.0] * 5).high)
    )
    several = [answer(arm, i, 1.0) for i in range(ENOUGH) for arm in ("full", "pop")]
    assert not score_rows(several)[1].few


def test_tasks_weigh_alike_whatever_their_number_of_questions():
    records = [answer(arm, i, float(arm == "full" or i < 4), task="a") for i in range(8) for arm in ("full", "pop")]
    records += [answer(arm, i, 1.0, task="b") for i in range(200) for arm in ("full", "pop")]
    rows = {(row.arm, row.task): row for row in score_rows(records)}
    row, first, second = (rows["pop", task] for task in (ALL, "a", "b"))
    assert (row.score, row.full, row.difference.mean, row.different) == (0.75, 1, -0.25, 208)
    differences = [-1.0] * 4 + [0.0] * 4, [0.0] * 200
    assert row.difference == paired_interval(*differences)
    assert (first.difference, second.difference) == tuple(map(paired_interval, differences))


def test_windows_by_domain_and_over_all_with_both_perplexities():
    records = [window("full", i, 0.0, domain=d) for d in "ab" for i in range(3)]
    records += [window("pop", i, 0.1 * (1 + (d == "b")), domain=d, share=0.25, nll=2.1) for d in "ab" for i in range(3)]
    rows = {(row.arm, row.domain): row for row in window_rows(records)}
    assert (rows["pop", "a"].kl.mean, rows["pop", "b"].kl.mean) == pytest.approx((0.1, 0.2))
    assert rows["pop", ALL].kl.mean == pytest.approx(0.15)
    assert rows["pop", ALL].windows == 6
    assert (rows["pop", ALL].perplexity, rows["pop", ALL].perplexity_full) == pytest.approx(
        (math.exp(2.1), math.exp(2))
    )
    assert rows["pop", ALL].ratio.mean == pytest.approx(math.exp(0.1))
    assert rows["pop", ALL].ratio_against == rows["pop", ALL].ratio
    assert rows["pop", ALL].costs["bytes"] == 0.25


def test_windows_beside_another_arms():
    records = [window("full", i, 0.0) for i in range(3)]
    records += [window("pop", i, 0.1, nll=2.1 + i) for i in range(3)]
    records += [window("speed", i, 0.3, nll=2.3 + i) for i in range(3)]
    rows = {row.arm: row for row in window_rows(records, "pop")}
    assert rows["speed"].difference.mean == pytest.approx(0.2)
    found = rows["speed"].ratio_against  # alike in every window, whatever full attention's
    assert (found.low, found.mean, found.high) == pytest.approx([math.exp(0.2)] * 3)
    assert rows["speed"].ratio.low < rows["speed"].ratio.high
    assert rows["pop"].ratio_against.mean == 1


@pytest.mark.parametrize(
    ("tasks", "count", "won", "lost"),
    [(4, 25, 0.0, 0.9), (8, 12, 0.0, 0.8), (14, 12, 0.02, 0.5), (14, 12, 0.1, 0.1)],
)
def test_an_interval_over_tasks_holds_the_true_difference_about_as_often_as_it_says(tasks, count, won, lost):
    draw, held, tries = np.random.default_rng(0), 0, 400
    chances = [won, lost, 1 - won - lost]
    for _ in range(tries):
        found = paired_interval(*(list(draw.choice([1.0, -1.0, 0.0], p=chances, size=count)) for _ in range(tasks)))
        held += found.low <= won - lost <= found.high
        assert found.low <= found.mean <= found.high
    assert 0.92 <= held / tries <= 0.99


def test_an_interval_over_tasks_holds_its_mean_where_all_is_lost():
    for tasks in range(1, 15):
        found = paired_interval(*[[-1.0] * 12] * tasks)
        assert (found.low, found.mean) == (-1, -1)
        assert -0.9 < found.high < -0.5 if tasks < 3 else -1 < found.high < -0.8


def test_texts_are_paired_with_another_arm_where_that_is_asked_for():
    kls = {"full": [0.0, 0.0, 0.0], "control": [0.5, 0.1], "pop": [0.4, 0.3, 0.9]}
    records = [window(arm, i, kl) for arm, values in kls.items() for i, kl in enumerate(values)]
    full, control, pop = window_rows(records, against="control")  # which has not followed the third
    assert (pop.windows, pop.kl.mean) == (2, pytest.approx(0.35))
    assert [getattr(pop.difference, each) for each in ("mean", "low", "high")] == pytest.approx([0.05, -0.1, 0.2])
    assert (control.difference, full.difference.mean) == (Interval(0, 0, 0), pytest.approx(-0.3))
    assert [row.difference == row.kl for row in window_rows(records)] == [True] * 3  # full attention has none


GRID = """
[rows]
at_most = 0.6
pop = ["pop(cutoff=0.5)", "pop(cutoff=0.6)", "pop(cutoff=0.7)"]
speed = ["speed(cutoff=0.5)", "speed(cutoff=0.6)", "speed(cutoff=0.7)"]
lazyllm = ["lazyllm", "lazyllm(keep=0.5)", "lazyllm(keep=0.9)"]
"""


COMPOSED = """
[all]
at_most = { rows = 0.6, units = 0.2 }
"pop + quest" = ["pop(cutoff=0.5) + quest", "pop(cutoff=0.6) + quest"]
"""


def test_of_several_counts_every_one_has_to_fit(tmp_path):
    (tmp_path / "grid.toml").write_text(COMPOSED, encoding="utf-8")
    grid = Grid.read(tmp_path / "grid.toml")
    records = [window("full", 0, 0.0), window("pop(cutoff=0.5) + quest", 0, 0.1, share=0.3)]
    assert choose(records, grid) == ([], [
        "pop + quest, all: 1 of 2 settings were measured",
        "pop + quest, all: none of 1 settings fits; "
        "rows at least 0.300, at most 0.6, units at least 0.300, at most 0.2",
    ])  # fmt: skip
    [choice], told = choose([*records, window("pop(cutoff=0.6) + quest", 0, 0.2, share=0.2)], grid)
    assert (choice.plan, choice.shares, told) == ("pop(cutoff=0.6) + quest", {"rows": 0.2, "units": 0.2}, [])
    assert choose(records[:1], grid) == ([], ["pop + quest, all: none of 2 settings was measured"])


def test_the_rule_takes_what_fits_then_the_score_then_the_kl(tmp_path):
    (tmp_path / "grid.toml").write_text(GRID, encoding="utf-8")
    grid = Grid.read(tmp_path / "grid.toml")
    given = {  # share, questions answered of 100, KL
        "pop(cutoff=0.5)": (0.5, 49, 0.3),
        "pop(cutoff=0.6)": (0.59, 50, 0.4),
        "pop(cutoff=0.7)": (0.7, 100, 0.0),  # does not fit
        "speed(cutoff=0.5)": (0.5, 40, 0.1),  # far from the best score
        "speed(cutoff=0.6)": (0.6, 60, 0.2),
        "lazyllm": (0.7, 90, 0.1),
    }
    records = [answer("full", i, 1.0) for i in range(100)] + [window("full", 0, 0.0)]
    for arm, (share, right, kl) in given.items():
        records += [answer(arm, i, float(i < right), share=share) for i in range(100)]
        records.append(window(arm, 0, kl, share=share))
    choices, told = choose(records, grid)
    assert [(each.policy, each.plan, each.tried, each.fitting) for each in choices] == [
        ("pop", "pop(cutoff=0.5)", 3, 2),
        ("speed", "speed(cutoff=0.6)", 2, 2),
    ]
    assert (choices[0].shares, choices[0].kl) == ({"rows": 0.5}, 0.3)
    assert choices[0].difference == pytest.approx(-0.51)
    assert told == [
        "speed, rows: 2 of 3 settings were measured",
        "lazyllm, rows: 1 of 3 settings were measured",
        "lazyllm, rows: none of 1 settings fits; rows at least 0.700, at most 0.6",
    ]
    with pytest.raises(InputError, match="no records"):
        choose([], grid)


def test_the_frontier_is_what_nothing_cheaper_equals():
    def point(cost, lost):
        return Point(f"{cost}", "keep", cost, Interval(lost, lost, lost))

    points = [point(30, -1.0), point(10, -5.0), point(20, -6.0), point(40, -1.0), point(50, 0.0)]
    assert [each.cost for each in frontier(points, higher=True)] == [10, 30, 50]
    assert [each.cost for each in frontier(points, higher=False)] == [10, 20]


@pytest.mark.parametrize("worst", [0.0, 0.5, 40.0])
def test_a_plan_that_loses_nothing_has_its_place_in_the_picture(worst, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("benchmarks.quality.plot.save", lambda figure, path: drawn.append(figure))
    records = [window(arm, i, kl, share=share) for arm, kl, share in
               (("full", 0.0, 1.0), ("mapped", 0.0, 0.25), ("quest", worst, 0.5)) for i in range(3)]  # fmt: skip
    plot_quality(tmp_path / "x.png", [], window_rows(records), "title")
    for axis in drawn[0].axes:
        low, high = axis.get_ylim()
        assert low < 0 < worst + 1e-9 < high
        assert "mapped" in {each.get_text() for each in axis.texts}


def test_arms_with_an_adapter_have_a_frontier_of_their_own(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("benchmarks.quality.plot.save", lambda figure, path: drawn.append(figure))
    arms = {"full": (0.0, 1.0), "mapped": (0.1, 0.3), "quest": (0.2, 0.5)}
    records = [window(arm, i, kl, share=share) for arm, (kl, share) in arms.items() for i in range(3)]
    adapted = [{**record, "adapter": "one"} if record["arm"] == "quest" else record for record in records]
    for given, lines in ((records, {"-"}), (adapted, {"-", "--"})):
        plot_quality(tmp_path / "x.png", [], window_rows(given), "title")
        [axis, *_], [legend] = drawn[-1].axes, drawn[-1].legends
        stepped = [line for line in axis.lines if line.get_drawstyle() == "steps-post"]
        assert {line.get_linestyle() for line in stepped} == lines
        assert ("with an adapter" in {each.get_text() for each in legend.texts}) is (len(lines) == 2)
    # Beaten by a cheaper one, it has a name where it is the best with an adapter.
    assert "quest" in {each.get_text() for each in drawn[1].axes[0].texts}
    assert "quest" not in {each.get_text() for each in drawn[0].axes[0].texts}


@pytest.mark.parametrize(("share", "named"), [(0.301, True), (0.5, False)])
def test_an_arm_under_the_dot_of_a_better_one_has_a_name(share, named, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("benchmarks.quality.plot.save", lambda figure, path: drawn.append(figure))
    arms = {"full": (0.0, 1.0), "mapped": (0.1, 0.3), "quest": (0.101, share), "pop": (0.4, 0.9)}
    records = [window(arm, i, kl, share=share) for arm, (kl, share) in arms.items() for i in range(3)]
    plot_quality(tmp_path / "x.png", [], window_rows(records), "title")
    for axis in drawn[0].axes:
        names = {each.get_text() for each in axis.texts}
        assert ("quest" in names) is named
        assert "mapped" in names
        assert "pop" not in names
