"""The search on a tiny random model: what it measures, what it recommends, and that it stops and goes on."""

import errno
import json
import math
import os

import pytest
import torch

from tiny import tiny_model
from winnow import LLM, Plan
from winnow.errors import InputError
from winnow.evaluation.evaluate import Case
from winnow.evaluation.fidelity import fidelity
from winnow.policies.registry import POLICIES
from winnow.tasks import Example
from winnow.tune import search
from winnow.tune.candidates import GRID, LEFT_OUT, Found, join, joined_plans, single_plans
from winnow.tune.clock import Clock
from winnow.tune.frontier import MIB
from winnow.tune.limits import Limits
from winnow.tune.measure import measure, reference
from winnow.tune.result import result_of
from winnow.tune.search import Tuning
from winnow.tune.state import Ledger, about

WEAK, STRONG = "streaming(sink=1, recent=8)", "streaming(sink=1, recent=190)"


@pytest.fixture(scope="module")
def llm():
    return LLM(tiny_model(), prefill_chunk=64)


@pytest.fixture(scope="module")
def cases():
    torch.manual_seed(1)
    example = Example("", "", "", (), (), 6)
    return [Case("prompts", 200, i, None, example, torch.randint(3, 250, (200,)).tolist(), None) for i in range(8)]


def candidates(monkeypatch, *plans):
    found = Found([Plan.parse(plan) for plan in plans], [])
    monkeypatch.setattr(search, "single_plans", lambda llm, cases: found)


def tuned(llm, cases, limits, *, path=None, seconds=600.0):
    tuning = Tuning(llm, cases, limits, Ledger(path, about(llm, "tiny", cases)), Clock(seconds))
    tuning.run()
    return tuning


def test_a_measurement_is_fidelity_along_full_attentions_answer(llm, cases):
    known = reference(llm, cases[0], 0)
    got = measure(llm, known, Plan.parse(WEAK))
    ids = cases[0].ids
    expected = fidelity(llm, [*ids, *known.answer], WEAK, len(ids))
    assert known.answer == llm.generate([ids], cases[0].params)[0].token_ids
    assert (got.kl, got.agreement) == (pytest.approx(expected.kl, rel=1e-4), pytest.approx(expected.top1))
    stats = llm.generate([ids], cases[0].params, plan=WEAK)[0].stats
    assert got.rows_full == stats.rows_full
    assert got.units_read == stats.units_read < got.units_full
    assert got.total_bytes == stats.total_bytes


def test_full_attention_is_at_no_distance(llm, cases):
    known = reference(llm, cases[1], 1)
    got = measure(llm, known, Plan())
    assert (got.kl, got.agreement) == (pytest.approx(0, abs=1e-9), 1.0)
    counted = ("prompt", "rows_computed", "units_read", "total_bytes")
    assert [getattr(got, name) for name in counted] == [getattr(known.full, name) for name in counted]


def test_every_policy_is_tried_or_left_out_for_a_reason():
    assert sorted([*GRID, *LEFT_OUT]) == sorted(name for name, policy in POLICIES.items() if not policy.identity)


def test_policies_without_what_they_need_are_skipped_with_a_line(llm, cases):
    found = single_plans(llm, cases)
    assert any(line.startswith("locret is left out: ") for line in found.skipped)
    assert "snapkv" in {plan.keep.name for plan in found.plans}
    assert {policy.name for plan in found.plans for policy in plan.policies.values()} & set(LEFT_OUT) == set()


def test_only_plans_that_go_together_are_joined(llm, cases):
    by_verb = {"keep": [Plan.parse("h2o(budget=32)"), Plan.parse(WEAK)], "read": [Plan.parse("quest(budget=32)")]}
    ways = joined_plans(llm, by_verb, cases)
    assert [str(join(way)) for way in ways] == [f"{WEAK} + quest(budget=32)"]


def test_it_recommends_what_keeps_to_the_limits_on_both_parts(llm, cases, monkeypatch):
    candidates(monkeypatch, WEAK, STRONG)
    free = tuned(llm, cases, Limits(max_kl=100))
    strong, weak = (free.searched(Plan.parse(plan)) for plan in (STRONG, WEAK))
    assert strong.kl_bound < weak.kl
    limits = Limits(max_kl=(strong.kl_bound + weak.kl) / 2, max_cache_mib=strong.total_mib)
    result = result_of(tuned(llm, cases, limits))
    assert result.recommended.plan == STRONG
    assert result.recommended.confirmed.prompts == len(cases) // 2
    assert not limits.excess(result.recommended.confirmed.careful)
    assert WEAK not in [each.plan for each in result.finalists]


def test_what_the_confirmation_refutes_is_not_recommended(llm, cases, monkeypatch):
    candidates(monkeypatch, WEAK)
    truth = Tuning._figures

    def flattering(self, plan, prompts):
        found = truth(self, plan, prompts)
        if found is None or plan.is_full or prompts != self.parts.search:
            return found
        return search.figures_of([m.__class__(**{**vars(m), "kl": 0.0}) for m in self.ledger.of(str(plan), prompts)])

    monkeypatch.setattr(Tuning, "_figures", flattering)
    result = result_of(tuned(llm, cases, Limits(max_kl=1e-6)))
    assert result.recommended.plan == "full"


def test_with_no_such_plan_the_closest_is_named(llm, cases, monkeypatch):
    candidates(monkeypatch, WEAK, STRONG)
    result = result_of(tuned(llm, cases, Limits(max_kl=1e-7, max_cache_mib=1e-4)))
    assert result.recommended is None
    assert result.closest.off > 0
    assert any("memory" in phrase and "0.0001 was asked for" in phrase for phrase in result.closest.missed)


def test_what_its_timed_answers_hold_counts_too(llm, cases, monkeypatch):
    """They are its own, and may be longer than what it was compared on."""
    candidates(monkeypatch, STRONG)
    most = tuned(llm, cases, Limits(max_kl=100)).searched(Plan.parse(STRONG)).total_mib
    tuning = tuned(llm, cases, Limits(max_kl=100, max_cache_mib=most))
    assert result_of(tuning).recommended.plan == STRONG
    for record in tuning.records:
        record.stats.total_bytes = int(2 * most * MIB)
    result = result_of(tuning)
    assert result.recommended is None
    assert result.closest.off == pytest.approx(math.log(2), rel=1e-3)
    assert f"memory {2 * most:.4g} MiB (at most {most:.4g} was asked for)" in result.closest.missed


def test_no_time_is_no_recommendation(llm, cases, monkeypatch):
    candidates(monkeypatch, WEAK)
    tuning = tuned(llm, cases, Limits(), seconds=1e-6)
    assert tuning.ended == ["single policies", "the better ones", "confirmation"]
    assert result_of(tuning).recommended is None


def test_a_second_run_measures_nothing_again(llm, cases, monkeypatch, tmp_path):
    candidates(monkeypatch, WEAK, STRONG)
    path = tmp_path / "state.jsonl"
    first = tuned(llm, cases, Limits(max_kl=10), path=path)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"plan": "stopped in the mid')
    monkeypatch.setattr(search, "measure", lambda *_: pytest.fail("measured again"))
    second = tuned(llm, cases, Limits(max_kl=10), path=path)
    assert len(second.ledger) == len(first.ledger) > 0
    assert second.searched(Plan.parse(WEAK)) == first.searched(Plan.parse(WEAK))


def test_what_is_known_is_whole_while_a_torn_line_is_cut_off(llm, cases, tmp_path, monkeypatch):
    state, what = tmp_path / "state.jsonl", about(llm, "m", cases)
    Ledger(state, what)
    with state.open("a") as file:
        file.write('{"plan": "spe')
    torn = state.read_text()

    def stopped(path, to):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(type(state), "replace", stopped)
        with pytest.raises(InputError, match=r"cannot write .*No space left"):
            Ledger(state, what)
    assert state.read_text() == torn
    assert [path.name for path in tmp_path.iterdir()] == ["state.jsonl"]
    Ledger(state, what)
    assert state.read_text() == torn.splitlines()[0] + "\n"


def test_a_state_of_other_prompts_or_another_model_is_refused(llm, cases, tmp_path):
    path = tmp_path / "state.jsonl"
    Ledger(path, about(llm, "tiny", cases))
    with pytest.raises(InputError, match="other prompts"):
        Ledger(path, about(llm, "tiny", cases[1:]))
    with pytest.raises(InputError, match="model=tiny, not big"):
        Ledger(path, about(llm, "big", cases))
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"plan": "full"}) + "\n")
    with pytest.raises(InputError, match="line 2 is no measurement"):
        Ledger(path, about(llm, "tiny", cases))
