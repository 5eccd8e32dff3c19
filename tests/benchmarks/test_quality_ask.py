"""One question under all arms: what each answers, what that costs, and options by their likelihood."""

import pytest
import torch
from benchmarks.quality.ask import option_ids, replies, spent

from digits import Digits
from tiny import tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM, Plan
from winnow.errors import PlanError
from winnow.evaluation.evaluate import Case, cases
from winnow.tasks import Example, render

PLANS = [
    Plan.parse(text)
    for text in (
        "full",
        "streaming(sink=2, recent=40)",
        "snapkv(budget=20, window=8, chunk=None, local=0)",
        "sink_recent(sink=2, recent=20)",
        "speed(cutoff=1)",
        "speed(cutoff=1) + sink_recent(sink=2, recent=30)",  # goes on from what that one computed
        "full + sink_recent(sink=2, recent=30)",
    )
]
OPTIONS = ("rain", "no rain", "snow and hail")


@pytest.fixture(scope="module")
def llm():
    return LLM(tiny_model(), tokenizer=byte_tokenizer(), prefill_chunk=32, dtype="float32")


def choice(llm):
    example = Example("Clouds. " * 30, "And then?", "rain", (), (), 16, ("no rain",), options=OPTIONS)

    def score(example, text):
        return float(text in example.references)

    return Case("weather", 300, 0, None, example, render(example, llm.tokenizer), score)


def test_answers_and_costs_are_those_of_every_plan_alone(llm):
    [case] = cases(llm, [Digits()], [200], 1)
    found = list(replies(llm, case, PLANS))
    for plan, reply in zip(PLANS, found, strict=True):
        [alone] = llm.generate([case.ids], case.params, plan=plan)
        assert (reply.text, reply.finish_reason) == (alone.text, alone.finish_reason)
        assert reply.costs == spent(alone.stats)
        assert reply.score == case.score(case.example, alone.text)
    assert len({reply.costs["total_bytes"] for reply in found}) > 2


def test_rows_of_tokens_that_are_gone_on_from_are_counted(llm):
    [case] = cases(llm, [Digits()], [200], 1)
    first, again = replies(llm, case, [PLANS[0], PLANS[0]])
    assert first.costs == again.costs
    assert first.costs["rows_computed"] == first.costs["rows_full"]


def test_the_likeliest_option_is_chosen_by_all_its_tokens(llm):
    case = choice(llm)
    full, *others = replies(llm, case, PLANS)
    for option, found in zip(option_ids(llm, case.example), full.log_probs, strict=True):
        logits = llm.logits([*case.ids, *option], decode_from=len(case.ids))[:-1]
        wanted = logits.log_softmax(-1)[torch.arange(len(option)), torch.tensor(option)].sum()
        assert found == pytest.approx(float(wanted), abs=1e-4)
    best = OPTIONS[full.log_probs.index(max(full.log_probs))]
    assert (full.text, full.score) == (best, float(best == "no rain"))
    assert any(other.log_probs != full.log_probs for other in others)


def test_options_cost_what_writing_the_longest_costs(llm):
    case = choice(llm)
    [full] = replies(llm, case, PLANS[:1])
    longest, layers = max(map(len, option_ids(llm, case.example))), llm.decoder.shape.layers
    assert full.costs["new_tokens"] == longest
    assert full.costs["rows_computed"] == (len(case.ids) + longest - 1) * layers


def test_options_follow_a_header_as_they_are_and_plain_text_with_a_space(llm):
    assert llm.tokenizer.decode(option_ids(llm, choice(llm).example)[0]) == "rain"
    plain = LLM(tiny_model(), tokenizer=byte_tokenizer(None))
    assert plain.tokenizer.decode(option_ids(plain, choice(plain).example)[0]) == " rain"


def test_a_plan_that_cannot_run_is_refused_before_any_work(llm):
    [case] = cases(llm, [Digits()], [200], 1)
    done = []
    with pytest.raises(PlanError):
        list(replies(llm, case, [Plan(), Plan.parse("speed(cutoff=99)")], progress=done.append))
    assert not done
