import pytest

from winnow.plan import Plan
from winnow.policies.registry import POLICIES


def test_the_catalogue_is_the_registry(winnow):
    listed = winnow("plans", "--json").json
    assert [policy["name"] for policy in listed] == list(POLICIES)
    shown = winnow("plans").out
    for policy in listed:
        assert policy["summary"]
        assert policy["name"] in shown


@pytest.mark.parametrize("name", list(POLICIES))
def test_one_policy_shows_its_whole_docstring_and_its_defaults(winnow, name):
    shown = winnow("plans", name).out
    policy = winnow("plans", name, "--json").json
    assert policy["doc"] in shown
    for parameter in policy["parameters"]:
        if "default" in parameter:
            assert f"{parameter['name']}={parameter['default']!r}" in shown


def test_a_listed_signature_with_defaults_is_a_plan(winnow):
    for policy in winnow("plans", "--json").json:
        if all("default" in parameter for parameter in policy["parameters"]):
            shown = winnow("plans", policy["name"]).out
            plan = Plan.parse(shown.splitlines()[0].removesuffix(policy["verb"]))
            assert plan.policies[policy["verb"]] == POLICIES[policy["name"]]()
