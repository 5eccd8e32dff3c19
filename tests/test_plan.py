"""Plans: text in, text out, and an error that says what to change."""

from dataclasses import replace

import pytest

from models import small_model
from winnow import LLM, Plan
from winnow.errors import PlanError
from winnow.policies.compute.full import Full
from winnow.policies.keep.streaming import Streaming
from winnow.policies.read.sink_recent import SinkRecent
from winnow.policies.registry import POLICIES


@pytest.mark.parametrize(
    "text",
    [
        "full",
        "streaming",
        "streaming(sink=4, recent=1024)",
        "streaming(recent=8)",
        "streaming(sink=0, recent=8)",
        "lazyllm(keep=0.5) + streaming(recent=8)",
    ],
)
def test_text_comes_back(text):
    assert str(Plan.parse(text)) == text
    assert Plan.parse(str(Plan.parse(text))) == Plan.parse(text)


def test_positional_parameters_and_identities():
    assert Plan.parse("streaming(2, 8)").keep == Streaming(sink=2, recent=8)
    assert Plan.parse("full + dense + plain + everything") == Plan()
    assert str(Plan.parse("dense + streaming(recent=8) + plain")) == "streaming(recent=8)"
    assert str(Plan(keep=Streaming(sink=2))) == "streaming(sink=2)"


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_can_be_named(name):
    plan = Plan.parse(name)
    assert plan.policies[POLICIES[name].verb].name == name


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("streeming", "did you mean streaming"),
        ("nonsense(1)", "known policies"),
        ("streaming(size=3)", "it takes sink, recent"),
        ("streaming(sink=-1)", "sink=-1 must be at least 0"),
        ("streaming(recent=0)", "recent=0"),
        ("streaming(sink=1.5)", "sink=1.5 must be a whole number"),
        ("streaming(sink=True)", "whole number"),
        ("streaming(sink=x)", "not a literal"),
        ("streaming(1, sink=2)", "twice"),
        ("streaming(1, 2, 3)", "2 parameters"),
        ("streaming + streaming", "both say what to keep"),
        ("everything + streaming", "both say what to keep"),
        ("full(1)", "0 parameters"),
        ("full(x=1)", "it takes none"),
        ("streaming(", "cannot be read"),
        ("", "cannot be read"),
        ("streaming * 2", "join policies with"),
        ("__import__('os').system('true')", "not a policy"),
    ],
)
def test_a_bad_plan_says_what_to_change(text, says):
    with pytest.raises(PlanError, match=says):
        Plan.parse(text)


@pytest.mark.parametrize("plan", [
    f"duo(recent={10**19}, sink=0)", f"snapkv(budget=9, window=2, kernel={10**19 + 1})", f"streaming(recent={10**19})",
    f"lazyllm(layers=[{10**19}], keep=0.5)",
])  # fmt: skip
def test_numbers_that_no_kernel_can_take_are_refused(plan):
    with pytest.raises(PlanError, match=r"is larger than any text; use at most 4611686018427387904"):
        Plan.parse(plan)


def test_a_policy_under_the_wrong_verb():
    with pytest.raises(PlanError, match="not a keep policy"):
        Plan(keep=Full())


def test_a_bad_plan_is_refused_before_the_model_is_touched():
    with pytest.raises(PlanError):
        LLM("no-such-model-anywhere", plan="nothing")
    with pytest.raises(PlanError):
        LLM(small_model("llama"), plan="streaming(recent=0)")


def test_a_policy_that_took_anothers_place_is_spelled_as_it_is():
    plan = replace(Plan.parse("quest(page=8, budget=64)"), read=SinkRecent(recent=9))
    assert str(plan) == "sink_recent(recent=9)"
