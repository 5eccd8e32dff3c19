"""What must be true of every registered policy; a new one is found here by itself.

`off` parameters change nothing, `trial` parameters act on a few dozen tokens (see `winnow.policies.base.Policy`).
"""

import functools
import itertools
import random

import pytest
import torch

from covering import covering, marked
from driving import advance, decode, logits_of, prefill
from models import HEADS
from trials import ELSEWHERE, PROMPT, fresh, plan_of, small_llm, tolerance
from winnow import Plan, SamplingParams
from winnow.cache.quantized import SIDES, QuantizedSlab
from winnow.cache.requantized import RequantizedSlab
from winnow.kernels.quantize import scales_of
from winnow.policies.registry import IDENTITY, POLICIES

# Plain, windowed, soft-capped, unrotated, with sinks, and other numbers of heads.
FAMILIES = ("llama", "mistral", "gemma2", "smollm3", "gpt_oss", *HEADS)
CHUNKS = (1, 4, 64)
PRODUCT = [
    (name, way, family)
    for name, way, family in itertools.product(
        POLICIES, ("off", "mates", "evicted", "forks", "bytes", *CHUNKS), FAMILIES
    )
    if way != "off" or POLICIES[name].off is not None
]
ALWAYS = covering(PRODUCT)


def each_policy(what):
    """Every policy on every family, one way in which it must change nothing."""
    product, always = ([(name, family) for name, way, family in cases if way == what] for cases in (PRODUCT, ALWAYS))
    return pytest.mark.parametrize(("name", "family"), marked(product, always))


def trial_of(name):
    return plan_of(name, POLICIES[name].trial)


@pytest.fixture
def llm(family, device):
    return small_llm(family, device)


@functools.cache
def under_trial(llm, name, ids):
    """Logits after the prompt and each other token: what nothing may change. ids: a tuple."""
    return llm.logits(list(ids), decode_from=PROMPT, plan=trial_of(name))


def assert_same(got, expected, atol=1e-5):
    assert not expected.isnan().any()
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


def test_there_is_one_identity_per_verb():
    assert set(IDENTITY) == {"prompt", "compute", "keep", "prefill", "read", "store"}
    assert Plan().is_full


@each_policy("off")
def test_turned_off_means_off(name, llm, text):
    got = llm.logits(text, decode_from=PROMPT, plan=plan_of(name, POLICIES[name].off))
    assert_same(got, llm.logits(text)[PROMPT - 1 :])


@pytest.mark.parametrize("name", [name for name, policy in POLICIES.items() if not policy.identity])
def test_a_trial_acts(name, text):
    """The other tests of this file would prove nothing about a policy whose trial parameters did nothing."""
    llm = small_llm("llama")
    got = under_trial(llm, name, tuple(text))
    if name in ELSEWHERE:
        assert (got == llm.logits(text, decode_from=PROMPT)).all()
        return
    assert (got - llm.logits(text)[PROMPT - 1 :]).abs().max() > 1e-3


@pytest.mark.parametrize(("name", "chunk", "family"), marked([case for case in PRODUCT if case[1] in CHUNKS], ALWAYS))
def test_the_chunk_size_changes_nothing(name, chunk, llm, text, monkeypatch):
    expected = under_trial(llm, name, tuple(text))
    monkeypatch.setattr(llm, "prefill_chunk", chunk)
    assert_same(llm.logits(text, decode_from=PROMPT, plan=trial_of(name)), expected, tolerance(trial_of(name)))


@each_policy("mates")
def test_batch_mates_and_arrival_change_nothing(name, llm, text):
    """One sequence decodes while others, full and under the plan, prefill and decode beside it."""
    assert_same(
        beside_others(llm, trial_of(name), text), under_trial(llm, name, tuple(text)), tolerance(trial_of(name))
    )


def beside_others(llm, trial, text):
    """Logits after the prompt and each other token."""
    source = random.Random(3)
    other = [source.randrange(3, 97) for _ in range(40)]
    state, prompt = fresh(llm, trial, text)
    mates = [fresh(llm, plan, other)[0] for plan in (Plan(), trial)]
    rows = [prefill(llm.decoder, state, prompt, llm.prefill_chunk)]
    for step, token in enumerate(text[PROMPT:]):
        batch = [(state, [token])] + [(mate, other[2 * step : 2 * step + 2]) for mate in mates]
        if step % 2:
            batch.reverse()
        at = batch.index((state, [token]))
        hidden = advance(llm.decoder, batch, decode=[len(tokens) == 1 for _, tokens in batch])
        rows.append(logits_of(llm.decoder, hidden[at][-1:])[0])
    return torch.stack(rows)


@each_policy("evicted")
def test_evicted_units_are_gone(name, llm, text):
    """Memory that holds no live unit is full of NaN at every step, and nothing changes."""
    assert_same(
        poisoned(llm, trial_of(name), text, PROMPT), under_trial(llm, name, tuple(text)), tolerance(trial_of(name))
    )


def poisoned(llm, trial, text, prompt):
    """Logits after the prompt and each other token."""
    state, seen = fresh(llm, trial, text, prompt)
    poison(state)
    for start in range(0, len(seen), llm.prefill_chunk):
        [hidden] = advance(llm.decoder, [(state, seen[start : start + llm.prefill_chunk])], decode=False)
        poison(state)
    rows = [logits_of(llm.decoder, hidden[-1:])[0]]
    for token in text[prompt:]:
        rows.append(decode(llm.decoder, [(state, token)])[0])
        poison(state)
    return torch.stack(rows)


@torch.inference_mode()
def poison(state):
    for cache in state.caches:
        settled = cache.memory.offset
        for slab in (cache.slab.keys, cache.slab.values):
            slab[:, max(cache.head - settled, 0) : max(cache.start - settled, 0)] = torch.nan
            slab[:, cache.stop - settled :] = torch.nan
        for slab, _ in cache.memory._settled:
            if isinstance(slab, QuantizedSlab):
                for scales, side in zip(slab.scales, SIDES, strict=True):
                    scales_of(scales, slab.form, side, slab.units, slab.capacity).fill_(torch.nan)
    for aside in state.aside.values():
        aside.hidden[aside.count :] = torch.nan


@each_policy("forks")
def test_forks_are_independent(name, llm, text):
    expected = under_trial(llm, name, tuple(text))
    state, prompt = fresh(llm, trial_of(name), text)
    rows = [prefill(llm.decoder, state, prompt, llm.prefill_chunk)]
    twin = state.fork()
    for token in reversed(text[PROMPT:]):
        decode(llm.decoder, [(twin, token)])
    rows += [decode(llm.decoder, [(state, token)])[0] for token in text[PROMPT:]]
    assert_same(torch.stack(rows), expected, tolerance(trial_of(name)))
    late = state.fork()
    assert_same(decode(llm.decoder, [(late, 5)]), decode(llm.decoder, [(state, 5)]), tolerance(trial_of(name)))


@each_policy("bytes")
def test_bytes_are_those_of_the_tensors(name, llm, text):
    trial = trial_of(name)
    state, prompt = fresh(llm, trial, text)
    prefill(llm.decoder, state, prompt, llm.prefill_chunk)
    state.measure()
    assert state.stats.cache_bytes == sum(map(live_bytes, state.caches))
    slabs = {id(slab): slab for cache in state.caches for slab in (*dict(cache.memory._settled), cache.slab)}.values()
    tensors = [each for slab in slabs for each in tensors_in(slab)]
    storages = {each.data_ptr(): each.nbytes() for each in (tensor.untyped_storage() for tensor in tensors)}
    assert state.stats.allocated_bytes == sum(storages.values())
    shape = llm.decoder.shape
    for cache, context in zip(state.caches, shape.contexts, strict=True):
        bound = trial.bound(trial.gates(shape), PROMPT, len(text) - PROMPT, llm.prefill_chunk, context)
        assert bound is None or max(cache.peak_nbytes // cache.unit_bytes, cache.slab.capacity) <= bound


def tensors_in(slab):
    if isinstance(slab, RequantizedSlab):
        return [each for side in slab.sides for each in side]
    return (*slab.codes, *slab.scales, slab.places) if isinstance(slab, QuantizedSlab) else (slab.keys, slab.values)


def live_bytes(cache):
    """Of what holds the live units; of a scale that a group of units shares, as much as of the group is live."""
    total = 0
    for start, stop in ((0, cache.head), (cache.start, cache.stop)):
        for slab, first, last in cache.memory.pieces(start, stop):
            share = (last - first) / max(1, slab.capacity)
            total += sum(tensor.nbytes for tensor in tensors_in(slab)) * share
    return round(total)


@pytest.mark.parametrize("family", FAMILIES)
def test_full_attention_counts(llm, text):
    """Rows, units and bytes of full attention in closed form, windows included."""
    new = 7
    [out] = llm.generate([text], SamplingParams(max_tokens=new, ignore_eos=True))
    shape, stats = llm.decoder.shape, out.stats
    tokens = len(text) + new - 1
    assert stats.rows_computed == stats.rows_full == tokens * shape.layers
    seen = [[t if w is None else min(t, w) for t in range(len(text) + 1, tokens + 1)] for w in shape.windows]
    assert stats.units_read == stats.units_full == shape.kv_heads * sum(map(sum, seen))
    held = [tokens if w is None else min(tokens, w - 1) for w in shape.windows]
    assert stats.cache_bytes == shape.kv_heads * shape.unit_bytes * sum(held)
    peaks = [tokens if w is None else w - 1 + llm.prefill_chunk for w in shape.windows]
    assert stats.peak_cache_bytes == shape.kv_heads * shape.unit_bytes * sum(peaks)
    assert (stats.slow_steps, stats.fast_steps) == (new - 1, 0)
    assert (stats.prompt_tokens, stats.new_tokens) == (len(text), new)
