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


def test_a_press_becomes_a_plan_with_its_counts(winnow):
    shown = winnow("plans", "--from", "TOVAPress(0.75)", "--length", 4096)
    assert shown.code == 0
    assert "tova(budget=1024, chunk=None, local=0, decode_chunk=None)" in shown.out
    assert "Of 4,096 tokens 1,024 units stay per KV head and layer." in shown.out
    assert "Not the same: TOVAPress always keeps the last token" in shown.out
    told = winnow("plans", "--from", "KnormPress(0.75)", "-l", 4096, "--json").json
    assert told == {
        "press": "KnormPress(0.75)",
        "plan": "knorm(budget=1024, chunk=None, local=0)",
        "prompt": 4096,
        "kept": 1024,
        "removed": 3072,
        "notes": [],
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--from", "SnapKVPress(0.5)"), "--from and --length go together"),
        (("--length", 100), "--from and --length go together"),
        (("snapkv", "--from", "SnapKVPress(0.5)", "-l", 100), "--from and --length go together, alone"),
        (("--from", "SnapPress(0.5)", "-l", 100), "unknown press 'SnapPress': did you mean SnapKVPress?"),
        (("--from", "SnapKVPress(0.5)", "-l", 0), 'Invalid value "0" for -l'),
    ],
)
def test_a_press_that_cannot_be_translated_is_refused(winnow, arguments, message):
    shown = winnow("plans", *arguments)
    assert shown.code != 0
    assert message in " ".join(shown.err.split())
