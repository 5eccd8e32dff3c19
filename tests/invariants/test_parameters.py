"""A parameter that changes nothing where it is given is refused: every parameter of every policy is changed in turn.

What these tests see is one small model and texts of two dozen prompt tokens, or of a hundred, and two dozen decode
steps. A parameter passes if one of a few other values changes what comes out, what is counted or what is kept, or is
refused. So they find what never matters under some settings, and not what matters less than it should; values that act
on longer texts only have to be made small by `trial`.
"""

import dataclasses
import itertools
import random
import types
import typing

import pytest
import torch
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from covering import covering
from driving import decode, prefill
from models import CONFIGS
from tokenizers_for_tests import byte_tokenizer
from trials import small_convolutions, small_indexers
from winnow import LLM, Plan
from winnow.engine.services import admit
from winnow.errors import PlanError, WinnowError
from winnow.parameters import Where, idle
from winnow.policies.registry import POLICIES
from winnow.runtime.heads import HeadsConfig, RetainingHeads

PROMPT, LONGER, STEPS = 24, 100, 22
NAMED = [name for name, policy in POLICIES.items() if dataclasses.fields(policy)]
# Settings beside `trial` under which others may matter or not, where they are not found among the values of one field.
MORE = {
    "slowfast": [
        {"trigger": "sentence", "interval": 9, "min_gap": 2, "cooldown": 1},
        {"trigger": "sentence", "interval": 3, "min_gap": 3},
        {"trigger": "none"},
        {"selector": "alpha_fair", "prior": False},
        {"trigger": "none", "selector": "alpha_fair"},
    ],
    "lazyllm": [
        {"keep": 1.0, "keep_decode": 0.5},
        {"keep_decode": None, "max_revive": None},
        {"prune_generated": True, "keep_decode": None, "max_revive": 1},
        {"layers": (1,), "keep": 0.5},
    ],
    "fastkv": [{"voters": 1}, {"layer": 1}],
    "static_prune": [{"layers": 1, "voters": 1}],
    "quantized": [{"group": 32}],
    "locret": [{"chunk": None, "decode_chunk": 4}],
    "sirllm": [{"chunk": None, "decode_chunk": 4}],
    "snapkv": [{"kernel": 1}],
    "speed": [{"anchors": "first:3"}, {"anchors": "all"}, {"anchors": "none", "self_only": True}],
    "prompt_compression": [{"keep": 1.0}],
    "kvzip": [{"asks": (5,)}],
    "kvzap": [{"chunk": None, "decode_chunk": 4}],
}
# Values of strings, and of what may be None; others are counted up and down from the value that is there.
VALUES = {
    "anchors": ["none", "first:3", "last:4"],
    "decode_from": ["last:1", "last:6"],
    "heads": ["nowhere"],
    "gates": ["nowhere", (0.5,) * 15 + (0.6,)],
    "convolutions": ["nowhere"],
    "trained": ["nowhere"],
    "path": ["nowhere"],
    "scorer": ["needle"],
    "keep_decode": [0.2, 0.9, 1.0],
    "max_revive": [0, 1],
    "cumulative": [(0.5, 0.3)],
    "keep": [0.05, 0.3, 0.9, 1.0],
    "layers": [(1, 2), (2, 3), 1, 3],
    "cutoff": [1, 3],
    "pool": [1, 5, 3],
    "memory": [0.0, 0.3, 1.0],
    "far": [0.0, 0.6, 1.0],
    "half_life": [None, 1, 3],
    "decay": [0.1, 0.5],
    "decode_chunk": [None, 1, 3],
    "chunk": [None, 4, 9],
    "local": [0, 6],
    "recent": [1, 3, 6],
    "stabilizers": [0, 1, 6],
    "seed": [*range(1, 9)],
    "budget": [5, 8, 12],
    "kernel": [1, 5],
    "before": [0, 1],
    "layer_groups": [2, 3],
    "publish_delay": [1, 4],
    "bootstrap": [1, 20],
    "interval": [1, 2, 5, 20],
    "ahead": [1, 64, 500],
    "threshold": [0.2, 0.9],
    "gamma": [0.1, 0.8],
    "tau": [0.0, 0.02, 0.05, 1.0],
    "layer": [1, 3],
    "voters": [3, 9],
    "value_group": [16],
    "asks": [(9,), (40, 41, 42, 43)],
}


@pytest.fixture(scope="module")
def llm():
    """Four KV heads: some parts of policies act between more than two. Sinks and windows have nothing to add."""
    torch.manual_seed(1)
    config = CONFIGS["llama"]()
    config.num_key_value_heads = 4
    config.vocab_size = 259
    config.head_dim = 32
    llm = LLM(AutoModelForCausalLM.from_config(config).eval(), tokenizer=byte_tokenizer(), prefill_chunk=7)
    config = HeadsConfig.of(llm.model, llm.decoder.shape, width=8, target="repeat")
    llm.decoder.default_heads = RetainingHeads.random(config, seed=1)
    llm.decoder.default_convolutions = small_convolutions(llm)
    llm.decoder.default_indexers = small_indexers(llm)
    return llm


@pytest.fixture(scope="module")
def texts(llm):
    """Prompts, each with the tokens that are decoded after it."""
    source = random.Random(3)
    letters = "".join(source.choice("abcdefgh") + source.choice(["", "", ". ", "?", "!\n"]) for _ in range(150))
    ids = llm.tokenizer(letters)["input_ids"]
    short, longer = ids[: PROMPT + STEPS], ids[-LONGER - STEPS :]
    return [(each[:-STEPS], each[-STEPS:]) for each in (short, short[::-1], longer)]


def settings(policy):
    """`trial`, each of its fields that has a few named values at every one of them, and `MORE`.

    With seed 0 not one of so few steps happens to be slow.
    """
    yield dict(policy.trial)
    hints = typing.get_type_hints(policy)
    for field in dataclasses.fields(policy):
        for value in named(hints[field.name]):
            yield policy.trial | {field.name: value} | ({"seed": 1} if value == "random" else {})
    for more in MORE.get(policy.name, []):
        yield policy.trial | more


def named(hint):
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return tuple(itertools.chain(*map(named, typing.get_args(hint))))
    return (True, False) if hint is bool else (None,) if hint is type(None) else ()


def others(policy, name, value):
    """Some other values of a parameter."""
    hint = typing.get_type_hints(policy)[name]
    made = [*VALUES.get(name, []), *named(hint)]
    if isinstance(value, float) and name not in VALUES:
        made += [0.0, value / 2, 1.0]
    if isinstance(value, int) and not isinstance(value, bool) and name not in VALUES:
        made += [value + 1, value - 1, 2 * value + 1, value + 8]
    return [each for each in made if each != value]


def outcome(llm, prompt, fed, policy):
    """What comes of a policy: what is counted, and logits; or why it is refused."""
    plan = Plan(**{policy.verb: policy})
    try:
        llm.check([prompt], plan=plan)
    except WinnowError as error:
        return str(error)
    state, prompt = admit(llm.decoder, llm.tokenizer, plan, prompt, STEPS, llm.prefill_chunk)
    rows = [prefill(llm.decoder, state, prompt, llm.prefill_chunk)]
    rows += [decode(llm.decoder, [(state, token)])[0] for token in fed]
    state.measure()
    stats = {name: value for name, value in state.stats.to_dict().items() if isinstance(value, int)}
    return stats, torch.stack(rows)


def same(one, other):
    if isinstance(one, str) or isinstance(other, str):
        return False
    return one[0] == other[0] and torch.allclose(one[1], other[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "every"),
    [pytest.param(name, every, marks=pytest.mark.full if every else ()) for name in NAMED for every in (False, True)],
)
def test_every_parameter_changes_something_or_is_refused(name, every, llm, texts):
    """Every parameter under every setting; not every: as few of these pairs as have all parameters and settings. What
    changes nothing of a text may do so by chance, or since it is short, so others are asked."""
    policy, found, idle_ones, bases = POLICIES[name], {}, [], {}

    def run(values, at=0):
        try:
            made = policy(**values)
        except PlanError as error:
            return str(error)
        if (made, at) not in found:
            found[made, at] = outcome(llm, *texts[at], made)
        return found[made, at]

    for values in settings(policy):
        if not isinstance(run(values), str):  # what is refused as a whole has nothing to be changed
            bases[policy(**values)] = values
    defaults = {field.name: field.default for field in dataclasses.fields(policy)}
    pairs = [*itertools.product(bases, defaults)]
    for made, field in pairs if every else covering(pairs, together=1):
        values = bases[made]
        value = values.get(field, defaults[field])
        if all(
            same(run(values, at), run(values | {field: other}, at))
            for at in range(len(texts))
            for other in others(policy, field, value)
        ):
            idle_ones.append((values, field))
    assert not idle_ones, "\n".join(f"{name}({values}): {parameter}" for values, parameter in idle_ones)


@pytest.mark.parametrize("name", NAMED)
def test_the_parameters_that_are_declared_exist_and_the_trial_keeps_to_them(name):
    policy = POLICIES[name]
    assert policy.matters.keys() <= {field.name for field in dataclasses.fields(policy)}
    assert all(where.said for where in policy.matters.values())
    for values in (policy.trial, policy.off or {}):
        policy(**values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slowfast(trigger='none', interval=5, min_gap=99, cooldown=7, trigger_on='end')", "interval=5.*trigger='sent"),
        ("slowfast(trigger='periodic', min_gap=99, trigger_on='end')", "min_gap=99.*needs trigger='sentence'"),
        ("slowfast(trigger='periodic', trigger_on='end')", "trigger_on='end'.*needs trigger='sentence'"),
        ("slowfast(interval=4, min_gap=4, cooldown=7)", "cooldown=7.*an interval above min_gap"),
        ("slowfast(seed=3)", "seed=3.*trigger='random'"),
        ("slowfast(trigger='none', memory=0.5)", "memory=0.5"),
        ("slowfast(trigger='none', publish_delay=2)", "publish_delay=2"),
        ("slowfast(trigger='none', layer_groups=2)", "layer_groups=2"),
        ("prompt_compression(keep=1.0, scorer='nonexistent')", "scorer='nonexistent'.*a keep below 1"),
        ("prompt_compression(keep=1.0, unit='phrase')", "unit='phrase'.*a keep below 1"),
        ("locret(chunk=None, stabilizers=60)", r"stabilizers=60.*chunk=\.\.\. or decode_chunk=\.\.\."),
        ("random_heads(chunk=None, stabilizers=60)", "stabilizers=60"),
        ("sirllm(chunk=None, decay=0.5)", "decay=0.5"),
        ("snapkv(kernel=1, pooling='avg')", "pooling='avg'.*a kernel above 1"),
        ("speed(anchors='all', decode_from='last:3')", "decode_from='last:3'.*anchors other than 'all'"),
        ("lazyllm(keep=1.0, keep_decode=0.5, revive='causal')", "revive='causal'.*a keep below 1"),
        ("lazyllm(keep=1.0, keep_decode=0.5, max_revive=1)", "max_revive=1"),
        ("lazyllm(keep_decode=1.0, prune_generated=True)", "prune_generated=True"),
    ],
)
def test_what_would_be_ignored_is_refused_with_what_it_needs(text, message):
    with pytest.raises(PlanError, match=f"{message}.*leave it out|{message}"):
        Plan.parse(text)


def test_a_default_counts_as_not_given():
    @dataclasses.dataclass
    class Record:
        way: str = "a"
        size: int = 3

    where = {"size": Where("way='b'", lambda record: record.way == "b")}
    assert idle(Record(), where) is idle(Record("b", 4), where) is idle(Record("a", 3), where) is None
    assert idle(Record("a", 4), where) == "size=4 changes nothing here: it needs way='b'; leave it out"
