"""KVzap: a threshold over what heads say, against a restatement over lists; its bounds, and what it is in kvpress."""

import random

import pytest
import torch

from covering import covered
from driving import decode, prefill
from evict_reference import held
from locret_reference import LocretReference
from locret_reference import small_llm as locret_llm
from models import small_model
from trials import PROMPT, fresh, small_llm
from winnow import LLM, Plan, SamplingParams
from winnow.engine.bound import bound_bytes
from winnow.errors import ModelError, PlanError
from winnow.policies.keep.kvzap import KVzap
from winnow.runtime.heads import HeadsConfig, RetainingHeads

HEADS = {"threshold": 0.0, "recent": 3}


class ThresholdReference(LocretReference):
    """Every head keeps its newest units, and all that score at least the threshold; of too many the best of a layer."""

    def __init__(self, model, heads, *, threshold, recent, chunk, budget=None, decode_chunk=None):
        super().__init__(model, heads, budget, chunk, 0, 0, "original", decode_chunk)
        self.threshold, self.recent = threshold, recent

    def acts(self, layer):
        return self.windows[layer] is None

    def _evict(self, protected):
        for layer, heads in enumerate(self.units):
            if not self.acts(layer):
                continue
            stay = [
                [u for at, u in enumerate(units) if at >= len(units) - self.recent or u.score >= self.threshold]
                for units in heads
            ]
            if self.budget is not None and sum(map(len, stay)) > self.budget * len(heads):
                order = [
                    (at >= len(units) - self.recent, u.score, u.position, head)
                    for head, units in enumerate(stay)
                    for at, u in enumerate(units)
                ]
                best = {(position, head) for *_, position, head in sorted(order)[-self.budget * len(heads) :]}
                stay = [[u for u in units if (u.position, head) in best] for head, units in enumerate(stay)]
            heads[:] = stay


@covered(
    name=["llama", "llama-9-3", "gemma2", "smollm3", "gpt_oss", "mistral"],
    parameters=[
        HEADS | {"chunk": 6},
        HEADS | {"chunk": None, "decode_chunk": 1},
        HEADS | {"chunk": 7, "budget": 8, "decode_chunk": 4},
        HEADS | {"chunk": 6, "threshold": -0.001, "recent": 1},
    ],
)
def test_equals_the_reference(name, parameters):
    ids = random.Random(7).sample(range(3, 97), 52)
    llm, prompt = locret_llm(name), 41
    reference = ThresholdReference(small_model(name), llm.decoder.default_heads, **parameters)
    expected, plan = reference.logits(ids, prompt), Plan(keep=KVzap(**parameters))
    torch.testing.assert_close(llm.logits(ids, decode_from=prompt, plan=plan), expected, rtol=0, atol=1e-5)
    state, seen = fresh(llm, plan, ids, prompt)
    prefill(llm.decoder, state, seen, llm.prefill_chunk)
    for token in ids[prompt:]:
        decode(llm.decoder, [(state, token)])
    acts = [at for at in range(4) if reference.acts(at)]
    mine = held(state)
    assert [mine[at] for at in acts] == [reference.noted[-1][1][at] for at in acts]


@pytest.mark.parametrize("budget", [None, 9, 20])
@pytest.mark.parametrize("decode_chunk", [None, 3])
def test_what_is_held_is_counted_and_bounded(text, budget, decode_chunk):
    llm, new = small_llm("llama"), 9
    plan = Plan(keep=KVzap(**HEADS, chunk=6, budget=budget, decode_chunk=decode_chunk))
    state, seen = fresh(llm, plan, text[: PROMPT + new - 1])
    prefill(llm.decoder, state, seen, llm.prefill_chunk)
    for token in text[PROMPT : PROMPT + new - 1]:
        decode(llm.decoder, [(state, token)])
    state.measure()
    shape, kept = llm.decoder.shape, sum(len(head) for layer in held(state) for head in layer)
    assert state.stats.cache_bytes == kept * shape.unit_bytes
    assert state.stats.total_bytes <= bound_bytes(plan, shape, PROMPT, new - 1, llm.prefill_chunk)
    assert state.stats.rows_computed == state.stats.rows_full == shape.layers * (PROMPT + new - 1)
    for cache, context in zip(state.caches, shape.contexts, strict=True):
        bound = plan.keep.bound(PROMPT, new - 1, context)
        assert cache.peak_nbytes <= bound * cache.unit_bytes
        assert cache.length <= plan.keep.longest(PROMPT, new - 1, context, shape.kv_heads)
    assert plan.keep.bound(PROMPT, 0, shape.contexts[0]) == {None: PROMPT, 9: 15, 20: 26}[budget]


def test_a_higher_threshold_keeps_less(text):
    llm, kept = small_llm("llama"), []
    for threshold in (-1e30, -0.002, 0.0, 0.002, 1e30):
        state, seen = fresh(llm, Plan(keep=KVzap(threshold=threshold, recent=3, chunk=6)), text)
        prefill(llm.decoder, state, seen, llm.prefill_chunk)
        kept.append(sum(len(head) for layer in held(state) for head in layer))
    assert kept[0] == 4 * 2 * PROMPT
    assert kept[-1] == 4 * 2 * 3
    assert kept == sorted(kept, reverse=True)
    assert len(set(kept)) == 5


def test_a_prompt_that_loses_nothing_is_held_like_any_other(text):
    llm = small_llm("llama")
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    [full] = llm.generate([text[:PROMPT]], params)
    [same] = llm.generate([text[:PROMPT]], params, plan=Plan(keep=KVzap(threshold=-1e30)))
    assert same.token_ids == full.token_ids
    assert same.stats.cache_bytes == full.stats.cache_bytes


def test_what_it_lacks_is_said():
    with pytest.raises(ModelError, match=r"no retaining heads for .*train some with winnow train kvzap"):
        LLM(small_model("llama")).prepare("kvzap")
    llm = LLM(small_model("llama"))
    llm.decoder.default_heads = RetainingHeads.random(HeadsConfig.of(llm.model, llm.decoder.shape, 8), seed=1)
    with pytest.raises(ModelError, match=r"say a logit, and the threshold of kvzap .*; train some with winnow train"):
        llm.prepare("kvzap")
    with pytest.raises(PlanError, match="kvzap: heads='' is no directory; leave heads out"):
        KVzap(heads="")
    with pytest.raises(PlanError, match="recent=128 must be below budget=128"):
        KVzap(budget=128)
    with pytest.raises(PlanError, match="kvzap keeps different numbers; use one of the two"):
        small_llm("llama").prepare("kvzap + quest")
