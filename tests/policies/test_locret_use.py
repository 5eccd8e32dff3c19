"""What Locret costs, what it refuses, and what it can be combined with."""

import random
from functools import partial
from math import isfinite

import pytest
import torch

from driving import prefill
from locret_reference import locret, random_heads, small_llm
from models import small_model
from tiny import tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM, Plan, SamplingParams
from winnow.cache.layer import LayerCache
from winnow.engine.services import admit
from winnow.errors import CapacityError, InputError, ModelError, PlanError
from winnow.policies.keep.locret import Locret, RandomHeads
from winnow.policies.registry import POLICIES
from winnow.runtime.sequence import HEADROOM

LAYERS, KV_HEADS, PROMPT = 4, 2, 41


@pytest.fixture
def llm():
    return small_llm()


@pytest.fixture
def ids():
    """52 different tokens."""
    return random.Random(7).sample(range(3, 97), 52)


@pytest.fixture
def idle(monkeypatch):
    """No row may enter the model."""
    monkeypatch.setattr("winnow.runtime.decoder.Decoder.embed", lambda *_: pytest.fail("the model was run"))


@pytest.mark.parametrize("prefill_chunk", [5, 64])
@pytest.mark.parametrize("positions", ["compact", "original"])
def test_counts_equal_the_closed_formulas(prefill_chunk, positions):
    llm, budget, chunk, local, new, prompt = small_llm(prefill_chunk=prefill_chunk), 32, 16, 8, 7, 205
    ids = [3 + i * 7 % 94 for i in range(prompt)]
    plan = locret(budget=budget, chunk=chunk, stabilizers=8, local=local, positions=positions)
    [out] = llm.generate([ids], SamplingParams(max_tokens=new, ignore_eos=True), plan=plan)
    unit, all_heads = llm.decoder.shape.unit_bytes, LAYERS * KV_HEADS
    held = budget + local + new - 1  # the last new token is not fed
    assert out.stats.peak_cache_bytes == (budget + chunk) * unit * all_heads
    assert out.stats.cache_bytes == held * unit * all_heads
    assert out.stats.aux_bytes == (budget + chunk) * (4 + 8) * all_heads  # scores, and positions of each head's own
    assert out.stats.total_bytes == out.stats.peak_cache_bytes + out.stats.aux_bytes
    assert held * unit * all_heads <= out.stats.allocated_bytes <= (budget + chunk) * unit * all_heads
    assert out.stats.units_read == all_heads * sum(budget + local + step for step in range(1, new))
    assert out.stats.units_full == all_heads * sum(prompt + step for step in range(1, new))
    assert out.stats.rows_computed == out.stats.rows_full == LAYERS * (prompt + new - 1)


def test_memory_goes_back_after_a_single_eviction(llm):
    """The whole prompt is held once, and then no more than the budget and room for what is to come."""
    ids, per_unit = [3 + i * 7 % 94 for i in range(1200)], llm.decoder.shape.unit_bytes * LAYERS * KV_HEADS
    plan = locret(budget=32, chunk=None, local=8, positions="original")
    state, _ = admit(llm.decoder, None, plan, ids, 4, 64)
    prefill(llm.decoder, state, ids, 64)
    state.measure()
    assert state.stats.peak_cache_bytes == 1192 * per_unit
    assert state.stats.cache_bytes == 40 * per_unit
    assert state.stats.allocated_bytes <= (40 + HEADROOM) * per_unit
    assert state.stats.aux_bytes == 1192 * 4 * LAYERS * KV_HEADS  # heads hold the same until then
    assert state.stats.total_bytes == state.stats.peak_cache_bytes + state.stats.aux_bytes


@pytest.mark.parametrize(("decode_chunk", "local"), [(1, 0), (4, 8), (30, 0)])
def test_generation_is_bounded_where_decode_evicts(llm, decode_chunk, local):
    """At most max(budget + chunk, budget + local + decode_chunk) units, however many tokens are new."""
    ids, new = [3 + i * 7 % 94 for i in range(100)], 80
    plan = locret(budget=32, chunk=4, stabilizers=8, local=local, decode_chunk=decode_chunk)
    most = 32 + max(4, local + decode_chunk)
    [out] = llm.generate([ids], SamplingParams(max_tokens=new, ignore_eos=True), plan=plan)
    per_unit = llm.decoder.shape.unit_bytes * LAYERS * KV_HEADS
    assert out.stats.peak_cache_bytes == most * per_unit
    assert out.stats.allocated_bytes <= most * per_unit
    assert out.stats.cache_bytes == (32 + (new - 1) % decode_chunk) * per_unit


def test_a_prompt_may_be_far_longer_than_the_models_positions(llm, monkeypatch):
    """4000 tokens where the model has 512 positions: no more memory than for 1000, at any time."""
    source, capacities, append = random.Random(1), [], LayerCache.append

    def noting(cache, *units, **more):
        append(cache, *units, **more)
        capacities.append(cache.slab.capacity)

    monkeypatch.setattr(LayerCache, "append", noting)
    ids, params = (
        [source.randrange(3, 97) for _ in range(4000)],
        SamplingParams(max_tokens=3, logprobs=1, ignore_eos=True),
    )
    plan = locret(budget=100, chunk=60, stabilizers=20, local=10)
    long, short = llm.generate([ids, ids[:1000]], params, plan=plan)
    assert long.stats.prompt_tokens == 4000
    assert all(isfinite(value) for step in long.logprobs for value in step.values())
    assert max(capacities) == 160
    for figure in ("cache_bytes", "peak_cache_bytes", "allocated_bytes", "aux_bytes", "units_read"):
        assert getattr(long.stats, figure) == getattr(short.stats, figure)


@pytest.mark.parametrize("plan", ["locret(positions='original')", "locret(budget=500, chunk=500)", "full"])
def test_more_positions_than_the_model_has_are_refused(llm, plan, idle):
    """Compact positions too: 500 + 500 of them are more than 512."""
    for call in (llm.check, llm.generate):
        with pytest.raises(CapacityError, match="4000 tokens, more than the model's 512"):
            call([5] * 4000, plan=plan)
    with pytest.raises(CapacityError, match="512"):
        llm.logits([5] * 4000, decode_from=3999, plan=plan)


@pytest.mark.parametrize(
    ("parameters", "new", "fits"),
    [
        ("budget=400, chunk=112, local=100", 12, True),
        ("budget=400, chunk=113, local=100", 12, False),
        ("budget=400, chunk=112, local=100", 13, False),
        ("budget=400, chunk=112, local=100, decode_chunk=12", 3000, True),
        ("budget=400, chunk=112, local=0, decode_chunk=113", 3000, False),
    ],
)
def test_the_most_units_at_once_are_the_positions_needed(llm, parameters, new, fits, idle):
    """512 of them: budget + chunk, budget + local + new tokens, or budget + local + decode_chunk."""
    check = partial(llm.check, [[5] * 4000], SamplingParams(max_tokens=new), plan=f"locret({parameters})")
    if fits:
        assert len(check()) == 1
        return
    with pytest.raises(CapacityError, match="4000 tokens, more than the model's 512"):
        check()


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ("locret(budget=0)", r"budget=0 must be at least 1"),
        ("locret(budget=-3)", r"budget=-3"),
        ("locret(chunk=0)", r"chunk=0 must be at least 1"),
        ("locret(decode_chunk=0)", r"decode_chunk=0 must be at least 1"),
        ("locret(budget=8, sink=0, stabilizers=8)", r"sink=0 and stabilizers=8 must leave a part of budget=8"),
        ("locret(budget=8, sink=0, stabilizers=9)", r"stabilizers=9 must leave a part of budget=8"),
        ("locret(budget=8, sink=5, stabilizers=3)", r"sink=5 and stabilizers=3 must leave"),
        ("locret(stabilizers=-1)", r"stabilizers=-1 must be at least 0"),
        ("locret(local=-1)", r"local=-1 must be at least 0"),
        ("locret(budget=8, local=9)", r"budget=8 is less than .* local=9.*larger budget or a smaller local"),
        ("locret(positions='foo')", r"positions.*'foo'.*'compact', 'original'|positions='foo'"),
        ("locret(budget=1.5)", r"budget"),
        ("locret(budget=None)", r"budget"),
        ("locret(heads=3)", r"heads"),
        ("locret(budgets=3)", r"no parameter 'budgets'"),
        ("locret + streaming", r"both say what to keep"),
        ("random_heads(heads='d')", r"leave heads out"),
        ("random_heads(width=0)", r"width=0 must be at least 1"),
    ],
)
def test_bad_parameters(llm, ids, plan, says, idle):
    for call in (lambda: Plan.parse(plan), lambda: llm.logits(ids, decode_from=PROMPT, plan=plan)):
        with pytest.raises(PlanError, match=says):
            call()


@pytest.mark.parametrize("local", [5, 6])
def test_a_tail_that_leaves_nothing_of_the_prompt_is_refused(llm, ids, local, idle):
    plan = f"locret(budget=10, local={local})"
    for call in (llm.check, llm.generate):
        with pytest.raises(InputError, match=rf"local={local} leaves nothing of a prompt of 5 tokens.*local=4"):
            call([ids, ids[:5]], plan=plan)
    with pytest.raises(InputError, match=f"local={local} leaves nothing"):
        llm.logits(ids, decode_from=5, plan=plan)


def test_defaults_fit_any_prompt(llm, ids):
    """None: a quarter of the budget, and 100 tokens or all but one of the prompt."""
    for tokens in (1, 2, 30):
        assert llm.generate([ids[:tokens]], SamplingParams(max_tokens=2, ignore_eos=True), plan="locret")[0].token_ids
    same = [llm.logits(ids, decode_from=PROMPT, plan=f"locret(budget=12, chunk=7, {rest})") for rest in (
        "local=4", "sink=4, stabilizers=3, local=4"
    )]  # fmt: skip
    assert torch.equal(*same)
    assert [Locret(budget=200).tail(prompt) for prompt in (1, 2, 100, 101, 5000)] == [0, 1, 99, 100, 100]
    assert Locret(budget=64).tail(5000) == 64


def test_without_heads_it_says_how_to_train_some(ids, idle):
    llm = LLM(small_model())
    for call in (llm.check, llm.generate):
        with pytest.raises(ModelError, match=r"no retaining heads for .*train some with winnow train locret"):
            call([ids], plan="locret")
    with pytest.raises(ModelError, match="winnow train locret"):
        llm.logits(ids, decode_from=PROMPT, plan="locret")


def test_random_heads_need_none_and_their_seed_and_width_decide(ids):
    llm = LLM(small_model())
    settings = [(1, 16), (1, 16), (2, 16), (1, 8)]
    got = [
        llm.logits(ids, decode_from=PROMPT, plan=Plan(keep=RandomHeads(budget=12, chunk=7, local=4, seed=s, width=w)))
        for s, w in settings
    ]
    assert torch.equal(got[0], got[1])
    assert all((got[0] - other).abs().max() > 1e-3 for other in got[2:])
    again = small_llm()  # with the same heads as trained ones would be
    expected = again.logits(ids, decode_from=PROMPT, plan=locret(budget=12, chunk=7, local=4))
    torch.testing.assert_close(got[0], expected, rtol=0, atol=1e-5)


def test_it_works_on_prompts_that_were_shortened(llm, ids):
    plan = "locret(budget=8, chunk=5, sink=0, stabilizers=2, local=3)"
    drop = POLICIES["random_drop"](keep=0.5, seed=2)
    short = [ids[i] for i in drop.shorten(ids[:PROMPT], None)]
    got = llm.logits(ids, decode_from=PROMPT, plan=f"random_drop(keep=0.5, seed=2) + {plan}")
    assert torch.equal(got, llm.logits(short + ids[PROMPT:], decode_from=len(short), plan=plan))

    tiny = LLM(tiny_model(), tokenizer=byte_tokenizer())
    tiny.decoder.default_heads = random_heads(tiny)
    shorter = Plan.parse("prompt_compression(keep=0.5, unit='token')")
    _, text = admit(tiny.decoder, tiny.tokenizer, shorter, ids[:PROMPT], 11, 512)
    assert len(text) < PROMPT
    got = tiny.logits(ids, decode_from=PROMPT, plan=f"prompt_compression(keep=0.5, unit='token') + {plan}")
    assert torch.equal(got, tiny.logits(text + ids[PROMPT:], decode_from=len(text), plan=plan))


@pytest.mark.parametrize("name", ["static_prune", "pop", "swiftkv"])
def test_plans_that_leave_out_rows_are_refused(llm, ids, name, idle):
    plan = Plan(compute=POLICIES[name](**POLICIES[name].trial), keep=Locret(budget=12))
    for call in (lambda: llm.check([ids], plan=plan), lambda: llm.logits(ids, decode_from=PROMPT, plan=plan)):
        with pytest.raises(
            PlanError, match=rf"(?s)(?=.*locret)(?=.*{name} (makes units without rows|evicts tokens)).*use one of them"
        ):
            call()


def test_heads_without_a_name_are_refused():
    with pytest.raises(PlanError, match="locret: heads='' is no directory; leave heads out"):
        Locret(heads="")
