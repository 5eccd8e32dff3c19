import pytest

from tiny import save_tiny_model
from winnow import LLM
from winnow.errors import PlanError
from winnow.evaluation.demo import Question, _stands_in, demo, demo_cases, document, questions, standings
from winnow.evaluation.fidelity import fidelity
from winnow.tasks.metrics import normalise

TEXT = "The ferry leaves at nine. " * 20 + "It returns at noon."
ASKED = [Question("When does it return?", ("noon", "12")), Question("When does it leave?", ("nine",))]
PLANS = ("streaming(sink=4, recent=32)", "slowfast(budget=999)")  # the second reads everything here


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(save_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def asked(llm):
    return list(demo(llm, PLANS, demo_cases(llm, TEXT, ASKED)))


def test_a_prompt_is_what_run_builds_of_a_file_and_a_question(llm):
    case = demo_cases(llm, TEXT, ASKED)[0]
    assert case.ids == llm.render([{"role": "user", "content": f"{TEXT}\n\n{ASKED[0].question}"}])


@pytest.mark.parametrize(("text", "score"), [("At Noon.", 1), ("at 12", 1), ("at midnight", 0), ("", 0)])
def test_any_accepted_answer_is_right_in_any_case(llm, text, score):
    case = demo_cases(llm, TEXT, ASKED)[0]
    assert case.score is not None
    assert case.score(case.example, text) == score


def test_every_plan_answers_every_question_full_attention_first(asked):
    assert [[record.plan for record in each.records] for each in asked] == [["full", *PLANS]] * 2
    assert [[found.plan for found in each.fidelities] for each in asked] == [list(PLANS)] * 2
    assert {found.tokens for found in asked[0].fidelities} == {len(asked[0].records[0].token_ids)}


def test_what_reads_everything_is_full_attention_and_what_forgets_is_not(asked):
    full, forgets, everything = standings(asked)
    assert (full.same, full.kl, full.top1) == (2, None, None)
    assert everything.same == 2
    assert everything.kl == pytest.approx(0, abs=1e-5)
    assert everything.top1 == 1
    assert forgets.kl > 1e-3
    assert forgets.cost.ratios["total"] < 1


def test_distances_weigh_every_token_alike(asked):
    _, forgets, _ = standings(asked)
    found = [each.fidelities[0] for each in asked]
    tokens = sum(each.tokens for each in found)
    assert forgets.kl == pytest.approx(sum(each.kl * each.tokens for each in found) / tokens)


def test_progress_covers_every_prompt_once_per_plan(llm):
    done, cases = [], demo_cases(llm, TEXT, ASKED)
    list(demo(llm, PLANS[:1], cases, progress=done.append))
    assert sum(done) == 2 * sum(len(case.ids) for case in cases)


def test_answers_and_counts_are_those_of_generate(llm, asked):
    for each in asked:
        for record in each.records:
            alone = llm.generate([each.case.ids], each.case.params, plan=record.plan)[0]
            assert (record.text, list(record.token_ids)) == (alone.text, alone.token_ids)
            timed = {
                "queue_s",
                "ttft_s",
                "total_s",
                "tpot_s",
                "allocated_bytes",
            }  # the twin's room is not where the prompt's was
            mine, its = record.stats.to_dict(), alone.stats.to_dict()
            assert {name: mine[name] for name in mine.keys() - timed} == {
                name: its[name] for name in its.keys() - timed
            }
            assert 0 < mine["ttft_s"] < mine["total_s"]


@pytest.mark.parametrize("plan", ["streaming(sink=4, recent=32)", "lazyllm", "slowfast(budget=32, recent=16)"])
def test_distances_are_those_of_two_runs_of_their_own(llm, plan):
    [each] = demo(llm, [plan], demo_cases(llm, TEXT, ASKED[:1]))
    [found] = each.fidelities
    alone = fidelity(llm, [*each.case.ids, *each.records[0].token_ids], plan, len(each.case.ids))
    assert (found.kl, found.top1, found.tokens) == (pytest.approx(alone.kl, abs=1e-6), alone.top1, alone.tokens)
    assert found.kl > 1e-4


def test_a_plan_that_cannot_run_is_refused_before_any_work(llm, monkeypatch):
    monkeypatch.setattr(LLM, "generate", lambda *arguments, **keywords: pytest.fail("it has begun"))
    with pytest.raises(PlanError):
        demo(llm, ["speed(cutoff=99)"], demo_cases(llm, TEXT, ASKED))


def test_the_bundled_document_holds_an_accepted_answer_to_each_question():
    text, asked = normalise(document()), questions()
    assert len(asked) == 8
    assert all(any(normalise(accepted) in text for accepted in each.accepted) for each in asked)


def test_no_question_gives_its_answer_away():
    assert not any(
        normalise(accepted) in normalise(each.question) for each in questions() for accepted in each.accepted
    )


@pytest.mark.parametrize(
    ("accepted", "text", "right"),
    [
        ("1000", "a grant of £1000, which", True),
        ("1000", "a grant of £10,000 to the", False),
        ("1,000", "a grant of £1,000.", True),
        ("1,000", "£1,000,000", False),
        ("100", "1000 dogs", False),
        ("Yelcho", "was the _yelcho_", True),
        ("Plymouth", "from PLYMOUTH to", True),
    ],
)
def test_an_accepted_answer_is_no_part_of_a_longer_number(accepted: str, text: str, right: bool) -> None:
    assert _stands_in(accepted, text) is right
