"""What the README says of plans on a pre-trained model rests on a hundred questions a row, and follows from them."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
methods = pytest.importorskip("recipes.blocks.methods")
from recipes.blocks import quality  # noqa: E402
from recipes.pages import document  # noqa: E402


def overall(name):
    return quality.by_arm(document(name)["scores"], "task")


@pytest.fixture(scope="module")
def shown():
    return methods.methods(*map(document, methods.FILES))


@pytest.mark.parametrize(("method", "page", "arm", "file"), methods.METHODS)
def test_every_row_has_a_hundred_questions_and_its_own_run(shown, method, page, arm, file):
    row = overall(file)[arm]
    [line] = [line for line in shown.splitlines() if line.startswith(f"| [{method}](docs/results/{page}.md)")]
    assert row["questions"] >= 100
    assert f"| {row['questions']} | {100 * row['score']:.0f} |" in line
    beside = "quality-taught-more-compared.json" if method == "SPEED" else file
    assert f"| {quality.points(overall(beside)[arm])} |" in line
    assert document(beside)["against"] == (methods.CONTROL if method == "SPEED" else "full")


def test_what_the_papers_own_settings_lose_stands_below(shown):
    ranked, authors = overall("quality-claims.json")[methods.RANKED], overall(methods.FINAL)[methods.AUTHORS]
    assert max(each["difference"]["high"] for each in (ranked, authors)) < -0.5
    assert min(each["questions"] for each in (ranked, authors)) >= 100
    for each in (ranked, authors):
        assert f"{quality.points(each)} " in shown


def test_every_question_of_slow_fast_had_been_asked_as_it_was_before():
    asked = {}
    for name in ("final", "final-slowfast"):
        rows = [
            json.loads(line)
            for half in "ab"
            for line in (ROOT / "recipes" / "quality" / "records" / f"{name}-{half}.jsonl").open(encoding="utf-8")
        ]
        asked[name] = {
            (row["task"], row["question"])
            for row in rows
            if row["kind"] == "answer" and row["arm"] in (methods.SLOWFAST, methods.BEFORE)
        }
    assert asked["final"] == asked["final-slowfast"]
    assert len(asked["final"]) > 390  # a few of multiple choice come twice


def test_fastkv_is_nearest_in_text_and_the_other_two_lose_fewer_answers():
    told = document(methods.FINAL)
    lost, kl = quality.by_arm(told["scores"], "task"), quality.by_arm(told["windows"], "domain")
    chosen, *others = quality.CHOSEN["0.6 of the rows"], "lazyllm", "static_prune(keep=0.44, layers=8)"
    for other in others:
        assert kl[chosen]["kl"]["mean"] < kl[other]["kl"]["mean"]
        assert lost[chosen]["difference"]["mean"] < lost[other]["difference"]["mean"]
        assert lost[other]["costs"]["rows"] <= 0.6
