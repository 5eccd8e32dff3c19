"""Fidelity of many plans on windows of texts: what is shared, what is averaged, and what is refused."""

import gzip
import json
import math
from pathlib import Path

import pytest
from benchmarks.fidelity_by_domain import (
    ALL,
    bootstrap,
    equal_plans,
    fidelity_by_domain,
    summarise_domains,
)
from benchmarks.texts import SOURCES
from benchmarks.windows import Window, windows

from models import small_model
from winnow import LLM
from winnow.engine import session as module
from winnow.errors import CapacityError, InputError, PlanError
from winnow.evaluation.compare import with_full
from winnow.evaluation.fidelity import fidelities, fidelity
from winnow.policies.keep.budgeted import Budgeted
from winnow.policies.registry import POLICIES

PLANS = ["streaming(sink=2, recent=8)", "sink_recent(sink=2, recent=4)"]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(small_model(), prefill_chunk=16)


@pytest.fixture(scope="module")
def needle() -> LLM:
    return LLM("needle")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Two books and a meeting; paragraphs begin with their number."""
    folder = tmp_path_factory.mktemp("data")
    paragraphs = {
        name: "\n\n".join(f"{number} of {name}: the ferry leaves at nine, rain or no rain." for number in range(60))
        for name in ("one", "two", "talk")
    }
    for domain, names in {"books": ("one", "two"), "meetings": ("talk",)}.items():
        file, field = SOURCES[domain]
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(folder / file, "wt", encoding="utf-8") as out:
            out.writelines(json.dumps({"id": name, field: paragraphs[name]}) + "\n" for name in names)
    return folder


def test_every_plan_has_the_figures_it_has_alone_and_full_attention_runs_once(llm, text, monkeypatch):
    ran, admit = list[object](), module.admit
    monkeypatch.setattr(module, "admit", lambda *given: ran.append(given[2]) or admit(*given))
    done: list[int] = []
    found = dict(zip(("full", *PLANS), fidelities(llm, text, with_full(PLANS), 20, progress=done.append), strict=True))
    assert (len(ran), sum(done)) == (3, 3 * len(text))
    monkeypatch.undo()
    for plan, (each, stats) in found.items():
        alone = fidelity(llm, text, plan, 20)
        assert (each.plan, each.tokens, each.top1) == (plan, 28, alone.top1)
        assert (each.kl, each.nll_full, each.nll_plan) == pytest.approx(
            (alone.kl, alone.nll_full, alone.nll_plan), abs=1e-6
        )
        assert stats.rows_computed == stats.rows_full == (len(text) - 1) * llm.decoder.shape.layers
    assert found["full"][0].kl == 0
    assert found["full"][1].units_read == found["full"][1].units_full
    heads = llm.decoder.shape.kv_heads * llm.decoder.shape.layers
    assert found[PLANS[0]][1].total_bytes < found["full"][1].total_bytes
    assert found[PLANS[1]][1].units_read == 27 * (2 + 4) * heads


def test_windows_begin_paragraphs_take_turns_and_more_add_to_those_there_were(data, needle):
    few, more = (windows(data, needle.tokenizer, 200, count) for count in (1, 3))
    assert [(each.domain, each.index) for each in more] == [
        (domain, index) for index in range(3) for domain in ("books", "meetings")
    ]
    assert few == more[:2]
    assert {each.text for each in more if each.domain == "books"} == {"one", "two"}
    for each in more:
        assert len(each.ids) == 200
        number, _, rest = needle.tokenizer.decode(list(each.ids)).strip().partition(" of ")
        assert number.isdigit()
        assert rest.startswith(each.text)
    assert windows(data, needle.tokenizer, 200, 3, domains=["meetings"]) == [e for e in more if e.domain == "meetings"]
    assert windows(data, needle.tokenizer, 200, 3, seed=1) != more


def test_means_over_domains_are_those_of_the_windows(llm, text):
    chosen = [
        Window("a", 0, "x", tuple(text)),
        Window("a", 1, "y", tuple(text[::-1])),
        Window("b", 0, "z", tuple(text[5:])),
    ]
    measured = [each for found in fidelity_by_domain(llm, PLANS, chosen, 20) for each in found]
    rows = {(row.plan, row.domain): row for row in summarise_domains(measured)}
    assert set(rows) == {(plan, domain) for plan in ("full", *PLANS) for domain in ("a", "b", ALL)}
    for domain, own in {"a": chosen[:2], "b": chosen[2:], ALL: chosen}.items():
        row, alone = rows[PLANS[0], domain], [fidelity(llm, each.ids, PLANS[0], 20) for each in own]
        assert row.windows == len(own)
        assert row.kl.mean == pytest.approx(sum(each.kl for each in alone) / len(own), rel=1e-4)
        assert row.kl.low <= row.kl.mean <= row.kl.high
        assert row.perplexity == pytest.approx(math.exp(sum(each.nll_plan for each in alone) / len(own)), rel=1e-4)
    full = rows["full", ALL]
    assert (full.kl.mean, full.top1.mean, full.rows_share, full.units_share, full.total_share) == (0, 1, 1, 1, 1)
    most = 16  # the first chunk, of 47, 47 and 42 tokens fed
    assert rows[PLANS[0], ALL].total_share == pytest.approx(3 * most / (47 + 47 + 42))


def test_the_interval_is_that_of_the_mean():
    values = [0.0, 1.0] * 50
    found = bootstrap(values)
    half = 1.96 * 0.5 / math.sqrt(len(values))
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.5 - half, 0.5 + half), abs=0.02)
    assert bootstrap([2.0]) == bootstrap([2.0, 2.0, 2.0])


def test_default_plans_are_all_policies_with_a_budget_at_the_same_one(needle):
    plans = equal_plans(256)
    named = {policy.name for plan in plans for policy in plan.policies.values() if not policy.identity}
    wanted = {name for name, policy in POLICIES.items() if issubclass(policy, Budgeted)}
    wanted |= {name for name, policy in POLICIES.items() if policy.verb == "read" and not policy.identity}
    wanted -= {"indexer"}  # which nothing is bundled for
    assert wanted <= named
    for plan in plans:
        plan.validate(needle.decoder.shape)
        if isinstance(plan.keep, Budgeted):
            assert plan.keep.budget + plan.keep.tail(4096) == 356
    assert next(plan for plan in plans if plan.keep.name == "streaming").keep.recent == 352


def test_what_cannot_be_measured_is_refused_before_any_work(llm, needle, data, text, tmp_path):
    with pytest.raises(InputError, match=r"'essays'.*books, meetings"):
        windows(data, needle.tokenizer, 200, 1, domains=["essays"])
    with pytest.raises(InputError, match="'books' has no 1 different windows of 90000 tokens, its longest text"):
        windows(data, needle.tokenizer, 90000, 1)
    with pytest.raises(InputError, match="holds no text"):
        windows(tmp_path, needle.tokenizer, 200, 1)
    short = Window("a", 0, "x", tuple(text))
    with pytest.raises(CapacityError, match="512 positions"):
        fidelity_by_domain(llm, PLANS, [short, Window("a", 1, "x", (5,) * 600)], 20)
    with pytest.raises(InputError, match="prompt_tokens=48"):
        fidelity_by_domain(llm, PLANS, [short], 48)
    with pytest.raises(PlanError):
        fidelity_by_domain(llm, ["speed(cutoff=99)"], [short], 20)
