"""`python -m benchmarks stores`: the same passages for all plans, paired with full attention's, and what is held."""

import json
import math

import pytest
from benchmarks.stores import PLANS, Passage, Stored, measure_stores, passages, summarise_stores
from benchmarks.stores_command import COLUMNS

from command_line import MADE_BY
from trials import small_llm
from winnow import LLM, Plan
from winnow.errors import InputError
from winnow.evaluation.fidelity import Fidelity

CODES = "quantized(bits=4, group=16, residual=0)"


def test_every_plan_is_fed_the_same_last_tokens_whatever_the_length():
    llm, told = small_llm("llama"), []
    plans, chosen = [Plan(), Plan.parse(CODES)], [Passage("a", 0, tuple(range(5, 75)))]
    found = list(measure_stores(llm, plans, chosen, [32, 64], 6, progress=told.append))
    assert [[(each.length, each.fidelity.plan) for each in group] for group in found] == [
        [(length, plan) for plan in ("full", CODES)] for length in (32, 64)
    ]
    assert sum(told) == 2 * (32 + 6 + 64 + 6)
    for length, (full, coded) in zip((32, 64), found, strict=True):
        assert (full.fidelity.kl, full.fidelity.top1, full.fidelity.nll_plan) == (0, 1, full.fidelity.nll_full)
        assert full.fidelity.tokens == coded.fidelity.tokens == 6
        whole = math.log(llm.decoder.shape.vocab)
        assert 0 < coded.fidelity.kl < whole
        of_code, shape = 2 * llm.decoder.shape.head_dim * (4 / 8 + 4 / 16), llm.decoder.shape
        held = shape.layers * shape.kv_heads * (length * of_code + 5 * shape.unit_bytes)  # the last one is never fed
        assert coded.cache_bytes == held


def test_ratios_are_of_pairs():
    """Texts differ far more from each other than a plan from full attention on the same: the interval shows it not."""

    def stored(plan, index, nll, more):
        fidelity = Fidelity(plan, 9, 4, more, 1 - more, nll, nll + more)
        return Stored(Passage("a", index, ()), 9, fidelity, 10 if more else 40, 50)

    rows = summarise_stores(
        [stored(plan, i, 2.0 + i, more) for i in range(4) for plan, more in (("full", 0.0), ("p", 0.1))]
    )
    full, plan = rows
    assert (full.ratio.mean, full.cache_share, full.passages) == (1, 1, 4)
    assert plan.ratio.mean == pytest.approx(math.exp(0.1))
    assert plan.ratio.low == pytest.approx(plan.ratio.high)
    assert (plan.cache_bytes, plan.cache_share, plan.total_share) == (10, 0.25, 1)


def test_passages_lie_evenly_over_each_text(tmp_path):
    llm, files = LLM("needle"), [tmp_path / "a.txt", tmp_path / "b.txt"]
    for file in files:
        file.write_text(" ".join(f"word {number}," for number in range(200)), encoding="utf-8")
    found = passages(llm, files, 40, 3)
    assert [(each.text, each.index) for each in found] == [(name, i) for name in ("a.txt", "b.txt") for i in range(3)]
    assert all(len(each.ids) == 40 for each in found)
    assert len({each.ids for each in found[:3]}) == 3
    with pytest.raises(InputError, match="are needed"):
        passages(llm, files, 100_000, 1)


def test_table_and_json(bench, tmp_path):
    out, document = tmp_path / "stores.json", tmp_path / "document.txt"
    document.write_text("The ferry leaves at nine. " * 200 + "It returns at noon.\n", encoding="utf-8")
    asked = ("--questions", 1, "-t", "passkey")
    sizes = ("-l", 400, "-l", 300, "--fed", 4, "--windows", 2)
    result = bench("stores", *sizes, "--text", document, "-p", CODES, *asked, "--out", out)
    assert result.code == 0, result.err
    told = json.loads(out.read_text(encoding="utf-8"))
    assert (told["command"], told["complete"], told["skipped"]) == ("stores", True, {})
    assert told.keys() >= MADE_BY
    assert [(row["plan"], row["length"]) for row in told["summary"]] == [
        (p, n) for n in (300, 400) for p in ("full", CODES)
    ]
    assert {(row["plan"], row["length"], row["task"]) for row in told["scores"]} == {
        (p, n, "passkey") for n in (300, 400) for p in ("full", CODES)
    }
    assert len(told["records"]) == 2 * 2 * 2
    assert all(heading.split("\n")[0] in result.out for heading in COLUMNS)


def test_by_default_what_the_model_cannot_run_is_left_out_with_the_reason(bench, tiny):
    result = bench("stores", "-m", tiny, "-l", 40, "--fed", 2, "--windows", 1, "--json")
    assert result.code == 0, result.err
    plans = {row["plan"] for row in result.json["summary"]}
    assert plans.isdisjoint(result.json["skipped"])
    assert {*PLANS} == plans | result.json["skipped"].keys()


@pytest.mark.usefixtures("forking")
def test_peers_follow_the_same_passages_and_are_compared_with_the_first_of_their_family(bench, tmp_path, document):
    out = tmp_path / "stores.json"
    sizes = (
        "-l",
        60,
        "--fed",
        4,
        "--windows",
        2,
        "--text",
        document,
        "--questions",
        1,
        "-t",
        "passkey",
        "--dtype",
        "float32",
    )
    result = bench("stores", *sizes, "-p", "streaming(sink=2, recent=30)", "--peer", "hf", "--out", out)
    assert result.code == 0, result.err
    told = json.loads(out.read_text(encoding="utf-8"))
    rows = {row["plan"]: row for row in told["summary"]}
    assert [(row["plan"], row["against"]) for row in told["summary"]] == [
        ("full", "full"),
        ("streaming(sink=2, recent=30)", "full"),
        ("hf", "hf"),
    ]
    assert (rows["hf"]["kl"]["mean"], rows["hf"]["ratio"]["mean"], rows["hf"]["total_share"]) == (0, 1, None)
    assert rows["hf"]["cache_bytes"] == rows["full"]["cache_bytes"]
    nll = {name: [r["nll_plan"] for r in told["records"] if r["plan"] == name] for name in ("full", "hf")}
    assert nll["hf"] == pytest.approx(nll["full"], rel=1e-4)
    assert {(row["plan"], row["examples"]) for row in told["scores"]} == {(name, 1) for name in rows}
    assert told["complete"]


def test_the_python_of_a_peer_that_is_not_asked_for_is_refused(bench):
    result = bench("stores", "--peer-python", "hf=python")
    assert (result.code, "--peer-python: is about --peer only" in result.err) == (2, True)


def test_tasks_without_questions_are_refused(bench):
    result = bench("stores", "-t", "passkey")
    assert (result.code, "--task: is about --questions" in result.err) == (2, True)
