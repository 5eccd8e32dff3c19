"""Every pair and triple of registered policies of different verbs: refused with a reason, or right.

A new policy is found here by itself, with its `trial` and `off` parameters.
"""

import dataclasses
import itertools
import random
import re
from functools import cache
from pathlib import Path

import pytest
import torch

from covering import covering, few, marked
from driving import advance, decode, logits_of, prefill
from invariants.test_policies import PROMPT, assert_same, fresh, live_bytes, poison, small_llm
from models import small_model
from trials import tolerance
from winnow import LLM, Plan
from winnow.errors import PlanError
from winnow.policies.keep.budgeted import Budgeted
from winnow.policies.registry import POLICIES

PAGE = Path(__file__).parents[2] / "docs" / "composition.md"
ACTING = [name for name, policy in POLICIES.items() if not policy.identity]
GROUPS = [
    names
    for count in (2, 3, 4)
    for names in itertools.combinations(ACTING, count)
    if len({POLICIES[name].verb for name in names}) == count
]
PAIRS, LARGER = [names for names in GROUPS if len(names) == 2], [names for names in GROUPS if len(names) > 2]
SHAPE = LLM(small_model("llama", "cpu")).decoder.shape


@cache
def made(name, off=False):
    policy = POLICIES[name]
    return policy(**(policy.off if off else policy.trial))


def joined(names, off=()):
    return Plan(**{POLICIES[name].verb: made(name, name in off) for name in names})


@cache
def refusal(names):
    try:
        joined(names).validate(SHAPE)
    except PlanError as error:
        return str(error)
    return None


# Policies with a budget whose scores ask neither who attends to a unit nor for logits.
SCORED_AT_ANY_TIME = [
    name for name in ACTING if issubclass(POLICIES[name], Budgeted) and (made(name).score.source in ("kv", "units"))
]
ACCEPTED = [names for names in GROUPS if refusal(names) is None]
SHORTENED = [
    names
    for names in ACCEPTED
    if len(names) == 2 and "prompt" in {POLICIES[name].verb for name in names} and "speed" not in names
]
REFUSED = [names for names in PAIRS if refusal(names) is not None]
FAMILIES = ("llama", "gemma2")  # plain, and with windows and soft caps, where threes are left out
PRODUCT = [
    (family, names, way)
    for names in ACCEPTED
    for family in FAMILIES[: 2 if len(names) == 2 else 1]
    for way in ("alike", "off", "saved")
]


def beside(case):
    """What a pair of policies on a family shows: each beside one of the other's verb, and each on the family."""
    family, *names = case
    return [(mine, each) for mine, other in (names, names[::-1]) for each in (POLICIES[other].verb, family)]


def of(count):
    """The accepted groups of so many policies."""
    return [names for names in ACCEPTED if len(names) == count]


# Every time: every policy beside one of each verb and on both families, alike on one and saved on the other; every
# policy, off in a pair; every policy, in a group of three. Whether they are refused is asked of all groups.
PAIRED = few([(family, *names) for family in FAMILIES for names in of(2)], beside, tuple)
ALWAYS = [
    (each, tuple(names), way)
    for family, *names in PAIRED
    for each, way in zip(FAMILIES[:: 1 if family == FAMILIES[0] else -1], ("alike", "saved"), strict=True)
]
ALWAYS += [(FAMILIES[index % 2], names, "off") for index, names in enumerate(few(of(2), tuple, tuple))]
ALWAYS += [("llama", names, way) for names in few(of(3), tuple, tuple) for way in ("alike", "saved")]


def each_group(what):
    """All groups that are accepted, one way in which they must compose."""
    product, always = ([case[:2] for case in cases if case[2] == what] for cases in (PRODUCT, ALWAYS))
    return pytest.mark.parametrize(("family", "names"), marked(product, always))


@cache
def logits(family, names):
    """Of `text()` under policies."""
    return small_llm(family).logits(text(), decode_from=PROMPT, plan=joined(names))


@cache
def after_prefill(family, names):
    """What the prompt has cost under policies."""
    llm = small_llm(family)
    state, prompt = fresh(llm, joined(names), text())
    prefill(llm.decoder, state, prompt, llm.prefill_chunk)
    state.measure()
    return state.stats


def text():
    source = random.Random(7)
    return [source.randrange(3, 97) for _ in range(42)]


@pytest.mark.parametrize("names", REFUSED, ids="+".join)
def test_a_refusal_names_both_and_a_way_out(names):
    reason = refusal(names)
    assert all(name in reason for name in names), reason
    assert re.search(r"; use [^;]+$", reason), reason


@pytest.mark.parametrize("first", [name for name in ACTING if any(names[0] == name for names in LARGER)])
def test_more_policies_are_refused_for_a_pair_of_them_or_name_all(first):
    """What is refused of three is refused of two of them, or the message says that it takes all three.

    All groups that begin with one policy at once: there are twelve thousand.
    """
    wrong = []
    for names in (names for names in LARGER if names[0] == first):
        pairs, reason = any(map(refusal, itertools.combinations(names, 2))), refusal(names)
        if (pairs and not reason) or (reason and not pairs and sum(name in reason for name in names) < 3):
            wrong.append(f"{'+'.join(names)}: {reason or 'accepted, though two of them are refused'}")
    assert not wrong, "\n".join(wrong)


@each_group("alike")
def test_a_group_acts_alike_in_chunks_batches_and_forks(family, names):
    """Any chunk size, batch mates, dead memory full of NaN, a fork: the same logits; bytes are those of the tensors."""
    llm, ids, expected = small_llm(family), text(), logits(family, names)
    assert expected.isfinite().all()
    state, prompt = fresh(llm, joined(names), ids)
    mate, _ = fresh(llm, Plan(), ids[::-1])
    poison(state)
    for start in range(0, len(prompt), 4):
        [hidden] = advance(llm.decoder, [(state, prompt[start : start + 4])], decode=False)
        poison(state)
    rows, twin = [logits_of(llm.decoder, hidden[-1:])[0]], state.fork()
    for step, token in enumerate(ids[PROMPT:]):
        batch = [(mate, ids[2 * step : 2 * step + 2]), (state, [token])]
        hidden = advance(llm.decoder, batch, decode=[False, True])[1]
        rows.append(logits_of(llm.decoder, hidden[-1:])[0])
        poison(state)
    assert_same(torch.stack(rows), expected, tolerance(joined(names)))
    assert_same(decode(llm.decoder, [(twin, ids[PROMPT])])[0], expected[1], tolerance(joined(names)))
    state.measure()
    assert state.stats.cache_bytes == sum(map(live_bytes, state.own_caches()))


@each_group("off")
def test_a_policy_that_is_off_changes_nothing_of_the_others(family, names):
    for name in (name for name in names if POLICIES[name].off is not None):
        got = small_llm(family).logits(text(), decode_from=PROMPT, plan=joined(names, off=[name]))
        others = tuple(other for other in names if other != name)
        assert_same(got, logits(family, others), tolerance(joined(others)))


@each_group("saved")
def test_no_policy_loses_what_another_saves(family, names):
    """Prefill computes the rows of the prompt and compute policies; units held at its end are no more than of any."""
    # What a policy saves is saved whatever it is joined with.
    got, each = after_prefill(family, names), {name: after_prefill(family, (name,)) for name in names}
    computes = tuple(name for name in names if POLICIES[name].verb in ("prompt", "compute"))
    llm, plan = small_llm(family), joined(names)
    left = fresh(llm, plan, text())[1]
    repeated = sum(len(each.tokens) for each in plan.keep.repeats(left, llm.services))
    rows = after_prefill(family, computes).rows_computed
    assert got.rows_computed == rows + llm.decoder.shape.layers * repeated
    if family == "llama":  # lazyllm keeps what leaves a window, for its revivals
        assert got.cache_bytes <= min(stats.cache_bytes for stats in each.values())


@pytest.mark.parametrize("names", marked([(each,) for each in SHORTENED], [(each,) for each in covering(SHORTENED, 1)]))
def test_what_is_left_of_a_prompt_is_a_prompt(names):
    """Logits of the other policy over the tokens that stay, at new positions; counts are those of the prompt as given.

    `speed` has a test of its own: it finds its tokens in the prompt as given.
    """
    llm, ids, plan = small_llm("llama"), text(), joined(names)
    _, left = fresh(llm, plan, ids)
    assert len(left) < PROMPT
    alone = dataclasses.replace(plan, prompt=Plan().prompt)
    expected = llm.logits(left + ids[PROMPT:], decode_from=len(left), plan=alone)
    assert_same(logits("llama", names), expected, tolerance(plan))
    mine, its = after_prefill("llama", names), measured(llm, alone, left + ids[PROMPT:], len(left))
    assert (mine.prompt_tokens, mine.rows_full) == (PROMPT, llm.decoder.shape.layers * PROMPT)
    assert (mine.rows_computed, mine.cache_bytes, mine.aux_bytes) == (its.rows_computed, its.cache_bytes, its.aux_bytes)


def measured(llm, plan, ids, prompt):
    """What a whole prompt of `prompt` tokens has cost."""
    state, seen = fresh(llm, plan, ids, prompt)
    prefill(llm.decoder, state, seen, llm.prefill_chunk)
    state.measure()
    return state.stats


@pytest.mark.parametrize("name", ACTING)
def test_the_page_says_of_every_pair_what_holds(name):
    """Its tables have a row and a column for every policy; a new one cannot be forgotten."""
    said, wrong = verdicts(), []
    for first, second in (names for names in PAIRS if name in names):
        word = said.get((first, second)) or said.get((second, first)) or "nothing"
        if not word.startswith("refused" if refusal((first, second)) else "yes"):
            wrong.append(f"{first} + {second}: {PAGE.name} says {word!r}, but {refusal((first, second)) or 'it works'}")
    assert not wrong, "\n".join(wrong)


@cache
def verdicts():
    """(row, column) -> cell of every table on the page whose first cell is 'with'."""
    found = {}
    header: list[str] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            header = []
        elif cells[0] == "with":
            header = cells[1:]
        elif header and not set(cells[0]) <= set("- :"):
            found |= {(cells[0], column): cell for column, cell in zip(header, cells[1:], strict=True)}
    return found


def test_three_are_refused_only_where_the_page_says_so():
    """Beyond those of which two are refused already."""
    threes = [names for names in GROUPS if len(names) == 3]
    pairs = {names: any(map(refusal, itertools.combinations(names, 2))) for names in threes}
    extra = {names for names in threes if refusal(names) and not pairs[names]}
    assert extra == {("lazyllm", keep, "slowfast") for keep in SCORED_AT_ANY_TIME}
