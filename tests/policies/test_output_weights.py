"""What stays by what it adds to a layer's output: against a restatement, on every family, and in company."""

import statistics

import pytest
import torch

from cache_of_scores import cache_of
from covering import covered
from driving import prefill
from evict_reference import assert_equals_reference
from invariants.test_policies import beside_others, poisoned
from models import small_model
from score_rules import SCORES
from shares_reference import adaptive, best, pyramid
from trials import PROMPT, fresh, small_llm
from winnow import LLM, Plan
from winnow.errors import PlanError
from winnow.policies.base import LayerContext
from winnow.policies.keep.base import Moment
from winnow.policies.keep.snapkv import SnapKV
from winnow.policies.registry import POLICIES
from winnow.runtime.outputs import output_norms

LAYERS = 4
WAYS = {
    "": {},
    "heads": {"by_head": "adaptive"},
    "layers": {"by_layer": "pyramid"},
    "both": {"by_head": "adaptive", "by_layer": "pyramid"},
}


def norms(model, layer, head, units):
    """{position: what a value adds}, query head by query head and value by value."""
    attention, config = model.model.layers[layer].self_attn, model.config
    width, group = attention.head_dim, config.num_attention_heads // config.num_key_value_heads
    weight, found = attention.o_proj.weight, {}
    for position, _, value in units:
        parts = [weight[:, (head * group + each) * width :][:, :width] @ value for each in range(group)]
        found[position] = sum(float(part.abs().sum()) for part in parts) / group
    return found


def critical(rank, adds, sure, count):
    """Positions that stay: `sure`, as many of the best others as make it half of `count`, and then by both."""
    stay = set(sure)
    for position in sorted(rank.keys() - stay, key=lambda p: (rank[p], p), reverse=True):
        if len(stay) < max(1, count // 2):
            stay.add(position)
    both = {p: (rank[p][0], (rank[p][1] + 1e-4) * adds[p], p) for p in rank.keys() - stay}
    return stay | set(sorted(both, key=both.get, reverse=True)[: count - len(stay)])


def weighed_rule(policy, model, protected, fixed, alike=False):
    """For `run_reference`. protected, fixed: units that stay, the newest and wherever they stand. alike: heads have one
    score and weigh by the mean over all."""
    budgets = [policy.budget] * LAYERS
    if policy.by_layer == "pyramid":
        budgets = pyramid(policy.budget, fixed, LAYERS, 31 - policy.local - fixed)

    def shared(layer, notes, lives):
        budget = budgets[layer]
        if sum(map(len, lives)) <= budget * len(lives):
            return None
        score = SCORES[policy.name]
        ranks = [{p: (True, s) for p, s in score(policy, model, note, live).items()}
                 for note, live in zip(notes, lives, strict=True)]  # fmt: skip
        kept, sure = [best(rank, protected, budget) for rank in ranks], protected
        if policy.by_head == "adaptive":
            kept, sure = adaptive(ranks, protected, budget), protected + (budget - protected) // 5
        adds = [norms(model, layer, head, note.units) for head, note in enumerate(notes)]
        if alike:
            adds = [{p: statistics.mean(each[p] for each in adds) for p in adds[0]}] * len(adds)
        return [
            critical(rank, adds[head], best(rank, protected, sure), len(kept[head])) for head, rank in enumerate(ranks)
        ]

    return shared


@covered(
    (
        ("name", "parameters", "protected", "fixed"),
        [
            ("snapkv", {"chunk": 6, "window": 4, "kernel": 3}, 4, 4),
            ("snapkv", {"chunk": None, "local": 0, "window": 2, "kernel": 1, "positions": "compact"}, 2, 2),
            ("h2o", {"chunk": 6, "recent": 2, "decode_chunk": 3}, 2, 2),
            ("expected_attention", {"chunk": 6, "sink": 2, "ahead": 8, "decode_chunk": 4}, 0, 2),
        ],
    ),
    way=WAYS,
    prefill_chunk=[1, 7, 64],
    together=2,
)
def test_the_other_half_adds_most(text, name, parameters, protected, fixed, way, prefill_chunk):
    policy = POLICIES[name](**{"budget": 9, "local": 4, **parameters, **WAYS[way]}, weigh="output")
    llm = LLM(small_model("llama"), prefill_chunk=prefill_chunk)
    rule = weighed_rule(policy, llm.model, protected, fixed)
    assert_equals_reference(llm, text, policy, None, 31, policy.local, shared=rule)


@pytest.mark.parametrize("way", ["", "layers"])
def test_one_index_for_all_heads_weighs_the_values_of_all(text, way):
    policy = POLICIES["tova"](budget=9, chunk=6, local=4, decode_chunk=3, **WAYS[way], weigh="output")
    llm = LLM(small_model("llama"), prefill_chunk=7)
    rule = weighed_rule(policy, llm.model, 0, 0, alike=True)
    sets = assert_equals_reference(llm, text, policy, None, 31, 4, shared=rule)
    assert all(layer[0] == layer[1] for layer in sets[30])


def test_half_by_score_and_half_by_both():
    scores = torch.tensor([[0.5, 0.1, 0.2, 0.05, 0.01, 0.0, 0.14]])
    policy = SnapKV(budget=5, window=1, kernel=1, local=0, weigh="output")
    outputs = torch.tensor([[1.0, 1.0, 1.0, 9.0, 1.0, 9e4, 0.0]])
    cache = cache_of(scores * policy.window)
    index = policy.select(cache, Moment(1000, 7, LayerContext(0, 1, None), outputs=outputs))
    assert index.tolist() == [[0, 2, 3, 5, 6]]  # 6 is new, 0 has the highest score; 5 adds much for next to nothing


@pytest.mark.parametrize("family", ["llama", "phi3", "gpt_oss", "olmo2", "granite", "cohere2", "llama-9-3"])
def test_norms_are_those_of_the_output_projection(family, text):
    """Its bias, where a family has one, adds the same for every unit."""
    llm = small_llm(family)
    state, prompt = fresh(llm, Plan.parse("snapkv(budget=9, chunk=6, window=4, kernel=3, local=4)"), text)
    prefill(llm.decoder, state, prompt, llm.prefill_chunk)
    shape = llm.decoder.shape
    for layer in (0, 3):
        cache = state.caches[layer]
        values = cache.live()[1].double().repeat_interleave(shape.q_heads // shape.kv_heads, 0)
        weight = llm.model.model.layers[layer].self_attn.o_proj.weight.double()
        each = torch.einsum("hud,ohd->huo", values, weight.view(shape.hidden, shape.q_heads, shape.head_dim))
        expected = each.abs().sum(-1).unflatten(0, (shape.kv_heads, -1)).mean(1).float()
        torch.testing.assert_close(output_norms(llm.decoder, layer, cache), expected, rtol=1e-5, atol=1e-6)


WEIGHED = [
    "snapkv(budget=9, chunk=6, window=4, kernel=3, local=4, weigh='output', by_head='adaptive')",
    "h2o(budget=9, chunk=6, recent=4, local=4, decode_chunk=3, weigh='output')",
    "tova(budget=9, chunk=6, local=4, weigh='output')",
    "lazyllm(layers=[1, 2], keep=0.5) + expected_attention(budget=9, chunk=6, sink=2, local=4, weigh='output')",
    "speed(cutoff=2, anchors='first:9') + h2o(budget=9, chunk=6, recent=4, local=4, weigh='output')",
]


@covered(plan=WEIGHED, family=["llama", "gemma2", "llama-9-3"])
def test_company_and_dead_memory_change_nothing(plan, family, text, monkeypatch):
    llm, plan, text = small_llm(family), Plan.parse(plan), text[:42]
    expected = llm.logits(text, decode_from=PROMPT, plan=plan)
    torch.testing.assert_close(beside_others(llm, plan, text), expected, rtol=0, atol=1e-5)
    monkeypatch.setattr(llm, "prefill_chunk", 4)
    torch.testing.assert_close(poisoned(llm, plan, text, PROMPT), expected, rtol=0, atol=1e-5)


def test_scores_of_either_sign_are_not_weighed():
    for name in ("locret", "random_heads", "knorm", "keydiff", "lagkv", "scissorhands", "sirllm"):
        with pytest.raises(PlanError, match=f"{name} has no parameter 'weigh'; it takes budget"):
            Plan.parse(f"{name}(weigh='output')")
