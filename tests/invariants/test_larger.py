"""What dozens of tokens in float32 do not reach: a prompt of 1,000 tokens, and bfloat16."""

import functools
import random

import pytest
import torch
from test_policies import assert_same, beside_others, poisoned, trial_of

import models
from driving import decode, prefill
from trials import ELSEWHERE, PROMPT, fresh, small_llm
from winnow import LLM, Plan
from winnow.policies.registry import POLICIES
from winnow.runtime.heads import HeadsConfig, RetainingHeads

LONG, STEPS = 1000, 6
PLANS = (
    "full",
    "streaming(sink=4, recent=100)",
    "locret(budget=90, chunk=150, local=20)",
    "snapkv(budget=90, chunk=150, window=8, local=20, decode_chunk=4)",
    "lazyllm(layers=[1, 3], keep=0.3)",
    "speed(cutoff=2)",
    "slowfast(budget=64, sink=4, recent=40, trigger='periodic', interval=4)",
    "quest(page=16, budget=128, dense_layers=1)",
    "sketch(budget=128, sink=4, recent=32)",
)


@functools.cache
def long_llm():
    """With room for the prompt, whose length no chunk of these tests divides."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(models.SMALL, "max_position_embeddings", 2048)
        llm = LLM(models.small_model("llama"), prefill_chunk=300)
    llm.decoder.default_heads = RetainingHeads.random(HeadsConfig.of(llm.model, llm.decoder.shape, 8, "repeat"), seed=1)
    return llm


@pytest.fixture(scope="module")
def long_text():
    source = random.Random(11)
    return [source.randrange(3, 97) for _ in range(LONG + STEPS)]


@pytest.mark.parametrize("plan", PLANS)
def test_a_thousand_tokens(plan, long_text, monkeypatch):
    """Other chunks, evicted units full of NaN and a fork change nothing; full attention is that of stock layers."""
    llm, plan = long_llm(), Plan.parse(plan)
    expected = llm.logits(long_text, decode_from=LONG, plan=plan)
    stock = models.stock_logits(llm.model, long_text)[LONG - 1 :]
    if plan.is_full:
        assert_same(expected, stock)
    else:
        assert (expected - stock).abs().max() > 1e-3
    monkeypatch.setattr(llm, "prefill_chunk", 64)
    assert_same(poisoned(llm, plan, long_text, LONG), expected)
    monkeypatch.setattr(llm, "prefill_chunk", 1024)
    state, prompt = fresh(llm, plan, long_text, LONG)
    prefill(llm.decoder, state, prompt, llm.prefill_chunk)
    twin = state.fork()
    decode(llm.decoder, [(state, 5)])
    assert_same(torch.cat([decode(llm.decoder, [(twin, token)]) for token in long_text[LONG:]]), expected[1:])
    bound = state.bound_bytes(STEPS)
    assert bound is None or sum(cache.peak_nbytes for cache in state.own_caches()) <= bound


# Logits of the model go to 2.3, where numbers of bfloat16 are 1/64 apart: four of them, for sums in another order.
CLOSE = 4 / 64
# Where units' scores are so close that another order of a sum chooses another unit, more is lost.
CHOOSING = dict.fromkeys(("indexer", "quest", "sketch", "tidal"), 12 / 64)


@pytest.fixture
def text():
    """48 tokens: what is left out in fewer of them is not seen above the rounding."""
    source = random.Random(7)
    return [source.randrange(3, 97) for _ in range(48)]


@functools.cache
def of_full(llm, ids):
    """What full attention says after the prompt and each other token. ids: a tuple."""
    return llm.logits(list(ids))[PROMPT - 1 :]


@pytest.mark.parametrize("name", POLICIES)
def test_in_bfloat16(name, text, monkeypatch):
    """Chunks, batch mates and evicted units full of NaN change no more than sums in another order do."""
    llm, trial, close = small_llm("llama", "cpu", torch.bfloat16), trial_of(name), CHOOSING.get(name, CLOSE)
    expected = llm.logits(text, decode_from=PROMPT, plan=trial)
    if not trial.is_full and name not in ELSEWHERE:
        assert (expected - of_full(llm, tuple(text))).abs().max() > 2 * close
    assert_same(beside_others(llm, trial, text), expected, close)
    monkeypatch.setattr(llm, "prefill_chunk", 4)
    assert_same(poisoned(llm, trial, text, PROMPT), expected, close)
