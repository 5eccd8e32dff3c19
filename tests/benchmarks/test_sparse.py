"""`python -m benchmarks sparse`: what is compared, counted and written; never how long it took."""

import json

import pytest
from benchmarks.sparse import Skipped, measure_sparse, summarise_sparse
from benchmarks.sparse_command import COLUMNS

from command_line import MADE_BY
from tiny import tiny_model
from winnow import LLM, Plan

PLANS = ("full", "xattention(block=8, stride=4, threshold=0.5)", "minference(pattern='a_shape', vertical=2, slash=8)")


def test_plans_are_compared_along_the_text_after_the_prompt():
    llm, plans = LLM(tiny_model()), [Plan.parse(plan) for plan in PLANS]
    ids = [5 + 7 * at % 90 for at in range(100)]
    [found] = measure_sparse(llm, plans, ids, [80], tail=3, repeats=2)
    assert [each.plan for each in found] == [str(plan) for plan in plans]
    assert all(len(each.seconds) == 2 for each in found)
    full, *others = found
    assert (full.pairs_full, full.kl, full.kl_most) == (0, 0, 0)
    full_logits = llm.logits(ids[:82], decode_from=80).log_softmax(-1)
    for each, plan in zip(others, plans[1:], strict=True):
        mine = llm.logits(ids[:82], decode_from=80, plan=plan).log_softmax(-1)
        kl = (full_logits.exp() * (full_logits - mine)).sum(-1)
        assert (each.kl, each.kl_most) == pytest.approx((float(kl.mean()), float(kl.max())), rel=1e-3)
        assert 0 < each.pairs_read < each.pairs_full


def test_a_speedup_is_taken_within_a_turn():
    def of(plan, *seconds):
        return Skipped(plan, 9, seconds, 1, 4, None, None)

    _, row = summarise_sparse([of("full", 1.0, 10.0, 2.0), of("other", 2.0, 5.0, 2.0)])
    assert (row.speedup, row.speedup_low, row.speedup_high, row.pairs) == (1.0, 0.5, 2.0, 0.25)
    assert (row.median_s, row.min_s) == (2.0, 2.0)


def test_table_and_json(bench, document, tmp_path):
    out, plot = tmp_path / "sparse.json", tmp_path / "sparse.png"
    arms = [part for plan in PLANS[1:] for part in ("-p", plan)]
    result = bench(
        "sparse", "-l", 60, "--tail", 4, "--repeats", 2, "--text", document, *arms, "--out", out, "--plot", plot
    )
    assert result.code == 0, result.err
    told = json.loads(out.read_text(encoding="utf-8"))
    assert (told["command"], told["complete"]) == ("sparse", True)
    assert told.keys() >= MADE_BY
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert len(told["summary"]) == len(told["records"]) == 3
    assert all(heading.split("\n")[0] in result.out for heading in COLUMNS)


def test_random_weights_take_no_text(bench, document):
    result = bench("sparse", "--shape", "needle-like", "--text", document)
    assert (result.code, "leave --text out" in result.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--shape", "needle-like"], "random weights do not tell"), (["-p", "full"], "give one with --plan")],
)
def test_a_picture_needs_something_to_draw(bench, tmp_path, arguments, message):
    result = bench("sparse", *arguments, "--plot", tmp_path / "no.png")
    assert (result.code, message in result.err) == (2, True)
    assert not (tmp_path / "no.png").exists()
