from dataclasses import dataclass, replace

import pytest

from tiny import tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM, Plan, Stats
from winnow.errors import CapacityError, InputError, PlanError
from winnow.evaluation.compare import Row, Timing, compare_document, finished, summarise, verdict, with_full
from winnow.evaluation.evaluate import Record, environment, evaluate
from winnow.tasks import Example

STREAMING = "streaming(sink=4, recent=32)"


@dataclass(frozen=True)
class Digits:
    """A prompt of random digits; the answer counts as right if it has an even number of characters."""

    name: str = "digits"

    def example(self, rng, *, tokens, tokenizer, depth=None):
        # One token per byte: 17 of the template, a blank line, and the question.
        context = "".join(rng.choices("0123456789", k=tokens - 17 - 2 - 4))
        place = rng.random() if depth is None else depth
        return Example(context, "Sum?", "", ("7",), (place,), 4 + rng.randrange(4))

    def score(self, example, text):
        return float(len(text) % 2 == 0)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(tiny_model(), tokenizer=byte_tokenizer(), prefill_chunk=16)


def test_every_plan_answers_the_same_examples(llm):
    records = list(evaluate(llm, with_full([STREAMING]), [Digits()], [64, 96], 3, seed=5))
    full = [r for r in records if r.plan == "full"]
    other = [r for r in records if r.plan == STREAMING]
    assert len(full) == len(other) == len({r.depths for r in full}) == 6
    for a, b in zip(full, other, strict=True):
        assert (a.length, a.index, a.depths, a.stats.prompt_tokens) == (b.length, b.index, b.depths, b.length)


def test_an_example_does_not_depend_on_what_else_is_run(llm):
    alone = list(evaluate(llm, [STREAMING], [Digits()], [96], 2))
    records = evaluate(llm, with_full([STREAMING]), [Digits()], [64, 96], 3)
    among = [r for r in records if r.plan == STREAMING and r.length == 96]
    assert [r.token_ids for r in alone] == [r.token_ids for r in among[:2]]


def test_full_attention_is_there_once_and_plans_take_turns_in_going_first(llm):
    records = list(evaluate(llm, with_full([STREAMING, "full", STREAMING]), [Digits()], [64], 3))
    assert [r.plan for r in records] == ["full", STREAMING, STREAMING, "full", "full", STREAMING]


def test_the_figures_of_a_row_are_those_of_its_records(llm):
    records = list(evaluate(llm, with_full([STREAMING]), [Digits()], [128], 3))
    full, other = summarise(records)
    assert (full.plan, full.rows_share, full.units_share, full.ratios["total"]) == ("full", 1.0, 1.0, 1.0)
    answers = [r for r in records if r.plan == STREAMING]
    assert other.units_share == sum(r.stats.units_read for r in answers) / sum(r.stats.units_full for r in answers)
    # 2 layers of 2 KV heads; a decode step reads 36 units where full attention reads all.
    assert sum(r.stats.units_read for r in answers) == sum(4 * 36 * (r.stats.new_tokens - 1) for r in answers)
    assert other.total_bytes == max(r.stats.total_bytes for r in answers) < full.total_bytes
    assert other.score == other.scores["digits"] == sum(r.score for r in answers) / 3


def test_progress_adds_up_to_the_prompts(llm):
    done: list[int] = []
    records = list(evaluate(llm, with_full([STREAMING]), [Digits()], [64], 2, progress=done.append))
    assert sum(done) == sum(r.stats.prompt_tokens for r in records)


@pytest.mark.parametrize(
    ("plans", "length", "error"),
    [([STREAMING], 40_000, CapacityError), (["nonsense"], 64, PlanError)],
)
def test_what_cannot_be_run_is_refused_at_the_call(llm, plans, length, error):
    with pytest.raises(error):
        evaluate(llm, with_full(plans), [Digits()], [64, length], 1)


def test_a_model_without_a_tokenizer_is_refused():
    with pytest.raises(InputError, match="no tokenizer"):
        evaluate(LLM(tiny_model()), with_full([]), [Digits()], [64], 1)


def test_a_document_has_no_score(llm):
    records = list(compare_document(llm, [STREAMING], [10] * 50, "why?", 4))
    assert [(r.plan, r.score, r.question) for r in records] == [("full", None, "why?"), (STREAMING, None, "why?")]
    assert [row.score for row in summarise(records)] == [None, None]


def test_only_examples_that_all_plans_answered_are_judged(llm):
    records = list(evaluate(llm, with_full([STREAMING]), [Digits()], [64], 2))
    assert finished(records[:3], 2) == records[:2]
    assert finished(records[:1], 2) == []
    assert summarise([]) == []


def test_medians_and_quartiles():
    stats = Stats(prompt_tokens=8, rows_computed=4, rows_full=8, units_read=1, units_full=4, total_bytes=10)
    made = [
        Record("t", 8, i, 0, None, "", (), (), "", (1,), float(i % 2), plan, (), "stop", replace(stats, ttft_s=ttft))
        for plan, times in (("full", (2.0, 4.0, 6.0)), ("x", (1.0, 2.0, 9.0)))
        for i, ttft in enumerate(times)
    ]
    full, other = summarise(made)
    assert (full.ttft_s, other.ttft_s) == (Timing(4.0, 2.0), Timing(2.0, 4.0))
    assert (other.ratios["ttft"], other.rows_share, other.units_share) == (0.5, 0.5, 0.25)
    assert (other.tpot_s, "tpot" in other.ratios) == (None, False)  # answers of one token


@pytest.mark.parametrize(
    ("score", "words"),
    [
        (0.24, "score 41 points lower (24 against 65 %, 4 examples)"),
        (0.66, "score 1 point higher (66 "),
        (0.65, "score the same (65 "),
    ],
)
def test_the_verdict_says_what_was_traded(score, words):
    full = Row(8, 4, {"t": 0.65}, 0.65, Timing(1, 0), Timing(1, 0), "full", 100, 1.0, 1.0, {})
    ratios = {"ttft": 0.9, "tpot": 0.8, "total": 0.26}
    row = replace(full, plan="x", score=score, units_share=0.25, ratios=ratios)
    line = verdict(row, full)
    assert line.startswith("x: memory 0.26x, reads 0.25x, computes 1.00x, TTFT 0.90x, TPOT 0.80x, ")
    assert words in line


def test_the_environment_names_versions_and_hardware(llm):
    found = environment(llm, "tiny")
    assert (found["model"], found["dtype"], found["device"]) == ("tiny", "float32", "cpu")
    assert {"winnow", "torch", "transformers", "python"} == found["versions"].keys()


def test_examples_of_another_seed_differ(llm):
    first, second = ([r.depths for r in evaluate(llm, [Plan()], [Digits()], [64], 2, seed=s)] for s in (1, 2))
    assert first != second
