"""Budgets that layers and heads share: against independent restatements, in closed form, and in any company."""

import itertools
import random

import pytest
import torch

from cache_of_scores import cache_of, kept
from covering import covered
from driving import decode, prefill
from evict_reference import assert_equals_reference, held
from invariants.test_policies import beside_others, live_bytes, poisoned
from locret_reference import locret
from locret_reference import small_llm as locret_llm
from models import small_model
from score_rules import SCORES
from shares_reference import SharedLocret, adaptive, best, pyramid
from trials import PROMPT, fresh, small_llm
from winnow import LLM, Plan
from winnow.cache.view import NOBODY
from winnow.errors import CapacityError, PlanError
from winnow.policies.base import LayerContext
from winnow.policies.keep.best import best_of_layer
from winnow.policies.keep.expected_attention import ExpectedAttention
from winnow.policies.keep.h2o import H2O
from winnow.policies.keep.keydiff import KeyDiff
from winnow.policies.keep.knorm import Knorm
from winnow.policies.keep.lagkv import LagKV
from winnow.policies.keep.scissorhands import Scissorhands
from winnow.policies.keep.sirllm import SirLLM
from winnow.policies.keep.snapkv import SnapKV
from winnow.policies.keep.tova import TOVA
from winnow.runtime.block import Block

WAYS = {
    "heads": {"by_head": "adaptive"},
    "layers": {"by_layer": "pyramid"},
    "both": {"by_head": "adaptive", "by_layer": "pyramid"},
}
LAYERS = 4


def shared_rule(policy, model, protected, fixed=None):
    """What layers and heads keep, for `run_reference`. protected: newest units that stay; fixed: units that stay,
    wherever they stand."""
    fixed = protected if fixed is None else fixed
    most = PROMPT - policy.local - fixed
    budgets = [policy.budget] * LAYERS
    if policy.by_layer == "pyramid":
        budgets = pyramid(policy.budget, fixed, LAYERS, most)

    def shared(layer, notes, lives):
        if sum(map(len, lives)) <= budgets[layer] * len(lives):
            return None
        ranks = [
            {
                p: (note.window is None or live[-1] + 1 - p < note.window, score)
                for p, score in SCORES[policy.name](policy, model, note, live).items()
            }
            for note, live in zip(notes, lives, strict=True)
        ]
        if policy.by_head == "adaptive":
            return adaptive(ranks, protected, budgets[layer])
        return [best(rank, protected, budgets[layer]) for rank in ranks]

    return shared


SNAPKV = {"chunk": 6, "window": 4, "kernel": 3}


@covered(
    (
        ("kind", "parameters", "protected"),
        [
            (SnapKV, SNAPKV, 4),
            (SnapKV, SNAPKV | {"chunk": None, "local": 0}, 4),
            (SnapKV, SNAPKV | {"positions": "compact", "decode_chunk": 2}, 4),
            (H2O, {"chunk": 6, "recent": 3}, 3),
            (H2O, {"chunk": None, "positions": "compact", "decode_chunk": 3}, 4),
            (Scissorhands, {"chunk": 6, "window": 5, "recent": 2}, 2),
        ],
    ),
    way=WAYS,
    prefill_chunk=[1, 7, 64],
    together=2,
)
def test_votes_are_shared_as_in_the_reference(text, kind, parameters, protected, way, prefill_chunk):
    policy = kind(**{"budget": 9, "local": 4, **parameters, **WAYS[way]})
    llm = LLM(small_model("llama"), prefill_chunk=prefill_chunk)
    rule = shared_rule(policy, llm.model, protected)
    sets = assert_equals_reference(llm, text, policy, None, PROMPT, policy.local, shared=rule)
    counts = [[len(head) for head in layer] for layer in sets[PROMPT - 1]]
    assert (len({sum(layer) for layer in counts}) > 1) == (policy.by_layer == "pyramid")
    assert any(len(set(layer)) > 1 for layer in counts) == (policy.by_head == "adaptive")


SINKS = {"budget": 12, "chunk": 7, "sink": 2}


@covered(
    (
        ("kind", "parameters", "fixed"),
        [
            (Knorm, {"chunk": 6}, 0),
            (Knorm, {"chunk": 5, "positions": "compact", "decode_chunk": 3}, 0),
            (KeyDiff, {"chunk": 6, "decode_chunk": 2}, 0),
            (KeyDiff, {"chunk": None, "local": 0, "positions": "compact"}, 0),
            (LagKV, SINKS | {"lag": 3, "decode_chunk": 4}, 8),
            (LagKV, SINKS | {"lag": 2, "positions": "compact", "decode_chunk": 3}, 6),
            (ExpectedAttention, SINKS | {"ahead": 8, "decode_chunk": 4}, 2),
            (ExpectedAttention, SINKS | {"ahead": 8, "positions": "compact", "decode_chunk": 3}, 2),
        ],
    ),
    way=WAYS,
    prefill_chunk=[1, 7, 64],
    together=2,
)
def test_scores_of_units_are_shared_as_in_the_reference(text, kind, parameters, fixed, way, prefill_chunk):
    """Each head's made of its own units alone, where heads hold different numbers of them."""
    policy = kind(**{"budget": 9, "local": 4, **parameters, **WAYS[way]})
    llm = LLM(small_model("llama"), prefill_chunk=prefill_chunk)
    assert_equals_reference(
        llm, text, policy, None, PROMPT, policy.local, shared=shared_rule(policy, llm.model, 0, fixed)
    )


@pytest.mark.parametrize("parameters", [{"chunk": 6}, {"chunk": 5, "positions": "compact", "decode_chunk": 4}])
def test_one_index_for_all_heads_falls_from_layer_to_layer(text, parameters):
    policy = TOVA(**{"budget": 9, "local": 4, **parameters}, by_layer="pyramid")
    llm = LLM(small_model("llama"), prefill_chunk=7)
    rule = shared_rule(policy, llm.model, 0)
    sets = assert_equals_reference(llm, text, policy, None, PROMPT, policy.local, shared=rule)
    assert [len(layer[0]) - 4 for layer in sets[PROMPT - 1]] == pyramid(9, 0, LAYERS, PROMPT - 4)
    assert all(layer[0] == layer[1] for layer in sets[PROMPT - 1])


LOCRET = {"budget": 12, "chunk": 7, "sink": 0, "stabilizers": 4, "local": 4}
# Below the window of layers that have one.
BELOW = {"budget": 5, "chunk": 4, "sink": 0, "stabilizers": 2, "local": 3, "decode_chunk": 4}


@covered(
    way=WAYS,
    name=["llama", "mistral", "gemma2", "smollm3", "gpt_oss"],
    parameters=[
        LOCRET, LOCRET | {"positions": "original", "decode_chunk": 3}, LOCRET | {"decode_chunk": 2, "sink": 2}, BELOW,
    ],
)  # fmt: skip
def test_importance_is_shared_as_in_the_reference(way, name, parameters):
    """In the caches of all families, at places that are a head's own, too."""
    ids = random.Random(7).sample(range(3, 97), 52)
    llm, prompt = locret_llm(name), 41
    reference = SharedLocret(
        small_model(name),
        llm.decoder.default_heads,
        prompt=prompt,
        **{"decode_chunk": None, "positions": "compact"} | parameters,
        **WAYS[way],
    )
    expected = reference.logits(ids, prompt)
    plan = locret(**parameters, **WAYS[way])
    torch.testing.assert_close(llm.logits(ids, decode_from=prompt, plan=plan), expected, rtol=0, atol=1e-5)
    state, seen = fresh(llm, plan, ids, prompt)
    prefill(llm.decoder, state, seen, llm.prefill_chunk)
    for token in ids[prompt:]:
        decode(llm.decoder, [(state, token)])
    mine = [layer for at, layer in enumerate(held(state)) if reference.acts(at)]
    assert mine == [layer for at, layer in enumerate(reference.noted[-1][1]) if reference.acts(at)]


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 7, 30, 33])
@pytest.mark.parametrize(("budget", "window", "prompt"), [(64, 8, 10_000), (9, 4, 40), (1024, 32, 1500), (41, 40, 99)])
def test_a_pyramid_has_as_many_units_as_a_block(layers, budget, window, prompt):
    policy = SnapKV(budget=budget, window=window, local=0, by_layer="pyramid")
    got = [policy.budget_of(LayerContext(at, layers, None), prompt) for at in range(layers)]
    assert got == pyramid(budget, window, layers, prompt - window)
    assert sum(got) == layers * budget
    assert got == sorted(got, reverse=True)
    assert got[-1] > window
    assert got[0] <= max(budget, prompt)
    falls = {high - low for high, low in itertools.pairwise(got)}
    assert not falls or max(falls) - min(falls) <= 2  # arithmetic, but for rounding


@pytest.mark.parametrize("windows", [
    (None, None, 512, 512), (512, None, 512, None), (*[512] * 5, None) * 3 + (512, 512), (2048, 512, None, 512, 2048),
])  # fmt: skip
def test_layers_that_keep_a_window_are_not_of_the_pyramid(windows):
    policy = SnapKV(budget=1024, window=32, local=0, by_layer="pyramid")
    layers = [LayerContext(at, len(windows), window, 1, windows) for at, window in enumerate(windows)]
    got = [policy.budget_of(layer, 100_000) for layer in layers if policy.pattern(layer).held]
    assert got == pyramid(1024, 32, len(got), 100_000 - 32)
    assert sum(got) == len(got) * 1024


def test_a_pyramid_in_figures():
    policy = SnapKV(budget=1024, window=32, by_layer="pyramid")
    got = [policy.budget_of(LayerContext(at, 5, None), 100_000) for at in range(5)]
    assert got == [32 + 1935, 32 + 1464, 1024, 32 + 520, 32 + 49]


def test_heads_that_matter_more_keep_more():
    scores = torch.tensor([[9.0, 8.0, 7.0, 6.0, 5.0, 0.5], [1.0, 4.5, 0.1, 0.2, 0.3, 0.4]])
    positions = torch.arange(6).expand(2, -1)
    assert [each.tolist() for each in best_of_layer(scores, positions, 6, 1)] == [[0, 1, 2, 3, 4], [1]]
    assert [each.tolist() for each in best_of_layer(scores, positions, 6, 2)] == [[0, 1, 2, 3], [0, 1]]
    level = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])  # of equals the newest, and of one token the later head's
    assert [each.tolist() for each in best_of_layer(level, torch.tensor([[0, 2, 4], [1, 2, 3]]), 3, 0)] == [[2], [1, 2]]
    none = torch.tensor([[-torch.inf, -torch.inf, -5.0], [-1.0, -2.0, -3.0]])  # a head with one unit has that for sure
    assert [each.tolist() for each in best_of_layer(none, positions[:, :3], 3, 2)] == [[2], [0, 1]]


@pytest.mark.parametrize(("budget", "window", "sure"), [(12, 2, 2 + 2), (11, 2, 2 + 1), (30, 5, 5 + 5), (6, 5, 5)])
def test_a_fifth_of_a_budget_is_sure(budget, window, sure):
    """However little a head's units count beside another's: the window's own, and a fifth of what is left, its best."""
    scores = torch.stack((torch.linspace(5, 6, 90), torch.linspace(0.2, 0.1, 90)))
    cache = cache_of(scores)
    kept(SnapKV(budget=budget, window=window, kernel=1, local=0, by_head="adaptive"), cache)
    first, second = ([p for p in head if p != NOBODY] for head in cache.live_positions().tolist())
    assert second == [*range(sure - window), *range(90 - window, 90)]
    assert first == [*range(90 - (2 * budget - sure), 90)]


PLANS = {
    "snapkv": "snapkv(budget=9, chunk=6, window=4, kernel=3, local=4, {})",
    "locret": "locret(budget=9, chunk=6, sink=0, stabilizers=3, local=4, {})",
    "every token": "h2o(budget=9, chunk=6, recent=4, local=4, {})",
    "compact, later": "locret(budget=9, chunk=6, local=4, decode_chunk=3, {})",
    "units": "expected_attention(budget=9, chunk=6, sink=2, ahead=8, local=4, {})",
    "once": "scissorhands(budget=9, chunk=None, window=5, recent=2, local=4, {})",
}
FAMILIES = ("llama", "gemma2", "llama-9-3")


@pytest.fixture
def text(text):
    return text[:42]


def spelled(plan, way):
    return Plan.parse(PLANS[plan].format(", ".join(f"{name}={value!r}" for name, value in WAYS[way].items())))


@covered(plan=PLANS, way=WAYS, family=FAMILIES)
def test_company_and_dead_memory_change_nothing(plan, way, family, text, monkeypatch):
    """Any chunk, batch mates, NaN where nothing lives, a fork before and after."""
    llm, plan = small_llm(family), spelled(plan, way)
    expected = llm.logits(text, decode_from=PROMPT, plan=plan)
    assert (expected - llm.logits(text)[PROMPT - 1 :]).abs().max() > 1e-3

    def same(got):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)

    same(beside_others(llm, plan, text))
    for chunk in (1, 4, 64):
        monkeypatch.setattr(llm, "prefill_chunk", chunk)
        same(poisoned(llm, plan, text, PROMPT))
    state, prompt = fresh(llm, plan, text)
    rows = [prefill(llm.decoder, state, prompt, 10)]
    twin = state.fork()
    for token in reversed(text[PROMPT:]):
        decode(llm.decoder, [(twin, token)])
    rows += [decode(llm.decoder, [(state, token)])[0] for token in text[PROMPT:]]
    same(torch.stack(rows))


@covered(plan=PLANS, way=WAYS, family=FAMILIES)
def test_bytes_are_those_of_the_formula(plan, way, family, text):
    """What a prompt leaves in every layer, whatever each of its heads has of it."""
    llm, plan = small_llm(family), spelled(plan, way)
    state, prompt = fresh(llm, plan, text)
    prefill(llm.decoder, state, prompt, llm.prefill_chunk)
    state.measure()
    shape, keep = llm.decoder.shape, plan.keep
    for cache, context in zip(state.caches, shape.contexts, strict=True):
        bound = keep.bound(PROMPT, len(text) - PROMPT, context)
        if keep.pattern(context).held:
            units = keep.budget_of(context, PROMPT) + keep.local
            assert cache.units == shape.kv_heads * units
            assert cache.nbytes == live_bytes(cache) == shape.kv_heads * units * shape.unit_bytes
            assert cache.peak_nbytes <= bound * shape.kv_heads * shape.unit_bytes
            if keep.ragged:
                kept = shape.kv_heads * keep.budget_of(context, PROMPT)
                tail = shape.kv_heads * keep.local
                assert cache.held_nbytes == (kept + tail) * shape.unit_bytes
                assert cache.held_beside_nbytes == kept * (8 + 4) + tail * 4
                assert cache.length <= keep.longest(PROMPT, len(text) - PROMPT, context, shape.kv_heads)
    assert state.stats.cache_bytes == sum(cache.nbytes for cache in state.caches)


@pytest.mark.parametrize("family", ["llama-9-3", "qwen3"])
@pytest.mark.parametrize("plan", PLANS)
def test_the_kernel_reads_what_there_is(plan, family, text, monkeypatch):
    """Its rows give what driven layers give, and count the units that there are; decode steps are nobody else's."""
    llm, plan = small_llm(family), spelled(plan, "both")
    assert llm.decoder.program.rows
    alone = plan.keep.positions == "original"  # or keys may yet be rotated anew
    got, stats = generated(llm, plan, text, watched=alone)
    monkeypatch.setattr(llm.decoder.program, "rows", 0)
    driven, its = generated(llm, plan, text)
    torch.testing.assert_close(got, driven, rtol=0, atol=1e-5)
    assert stats.units_read == its.units_read > 0


def generated(llm, plan, text, watched=False):
    """Logits after the prompt and each token, and what it has cost. watched: decode steps may drive no layer."""
    state, prompt = fresh(llm, plan, text)
    rows = [prefill(llm.decoder, state, prompt, llm.prefill_chunk)]
    with pytest.MonkeyPatch.context() as patch:
        if watched:
            patch.setattr(Block, "attend", None)
        rows += [decode(llm.decoder, [(state, token)])[0] for token in text[PROMPT:]]
    state.measure()
    return torch.stack(rows), state.stats


READERS = ("quest", "sketch", "slowfast", "sink_recent", "tidal")


@pytest.mark.parametrize(
    "other", [*READERS, "minference", "quantized(group=16)", "hf_quantized(group_size=8)", "mapped"]
)
def test_who_takes_as_many_units_of_every_head_is_refused(other):
    shape = small_llm("llama").decoder.shape
    with pytest.raises(PlanError, match=f"{other.partition('(')[0]} .*snapkv.*; use "):
        Plan.parse(f"snapkv(by_head='adaptive') + {other}").validate(shape)
    if other != "tidal":
        Plan.parse(f"snapkv(by_layer='pyramid') + {other}").validate(shape)


def test_what_does_not_differ_from_head_to_head_is_not_shared_by_them():
    with pytest.raises(PlanError, match="surprisal is the same in all of them; leave it out"):
        SirLLM(by_head="adaptive")
    with pytest.raises(PlanError, match="by_head='both' must be one of 'uniform', 'adaptive'"):
        SnapKV(by_head="both")


def test_surprise_in_a_pyramid(text):
    """Each layer keeps the most surprising tokens that its own budget leaves room for: fewer of the same ones."""
    llm = small_llm("llama")
    policy = SirLLM(budget=9, chunk=None, sink=2, recent=2, local=4, positions="original", by_layer="pyramid")
    state, prompt = fresh(llm, Plan(keep=policy), text)
    prefill(llm.decoder, state, prompt, llm.prefill_chunk)
    sets = [set(layer[0]) for layer in held(state)]
    assert [len(each) - 4 for each in sets] == pyramid(9, 4, LAYERS, PROMPT - 4 - 4)
    assert sets[-1] < sets[-2] < sets[1] < sets[0]


@pytest.mark.parametrize("compute", ["lazyllm(layers=[1, 2], keep=0.5)", "speed(cutoff=2)"])
@pytest.mark.parametrize("way", WAYS)
def test_with_tokens_that_stop(compute, way, text, monkeypatch):
    llm = small_llm("llama-9-3")
    plan = Plan.parse(f"{compute} + {spelled('locret', way)}")
    expected = llm.logits(text, decode_from=PROMPT, plan=plan)
    torch.testing.assert_close(beside_others(llm, plan, text), expected, rtol=0, atol=1e-5)
    monkeypatch.setattr(llm, "prefill_chunk", 4)
    torch.testing.assert_close(poisoned(llm, plan, text, PROMPT), expected, rtol=0, atol=1e-5)
    monkeypatch.setattr(llm.decoder.program, "rows", 0)
    torch.testing.assert_close(llm.logits(text, decode_from=PROMPT, plan=plan), expected, rtol=0, atol=1e-5)


def test_places_of_the_longest_head_are_what_positions_have_to_suffice_for(text):
    """Where one head may have most of a layer's units, their places must be the model's positions."""
    llm = small_llm("llama")  # of 512 positions, with two KV heads
    long = text * 40
    for way, budget in (("by_head='uniform'", 400), ("by_head='adaptive'", 200)):
        plan = Plan.parse(f"locret(budget={budget}, chunk=32, local=4, {way})")
        plan.prepare(llm.services, long, 8)
    with pytest.raises(CapacityError):
        Plan.parse("locret(budget=400, chunk=32, local=4, by_head='adaptive')").prepare(llm.services, long, 8)
