"""LazyLLM against its pseudocode, its invariants (I1 to I10) and its closed formulas."""

import math
import random

import pytest
import torch

from covering import covered
from driving import decode, prefill
from lazy_reference import LazyReference
from models import small_model
from winnow import LLM, Plan, SamplingParams
from winnow.errors import PlanError
from winnow.policies.compute.lazyllm import LazyLLM
from winnow.runtime.observer import Observer
from winnow.runtime.sequence import new_sequence
from winnow.runtime.shape import shape_of

LAYERS, PROMPT, NEW = 4, 40, 12


class Record(Observer):
    """(layer, rows, units that they read) of every call, in a list that the caller clears."""

    def __init__(self, calls):
        self.calls = calls

    def attended(self, attended):
        self.calls.append((attended.layer, attended.part, attended.views))


@pytest.fixture
def llm():
    return LLM(small_model("llama"), prefill_chunk=7)


def tokens(seed, count=PROMPT + NEW):
    source = random.Random(seed)
    return [source.randrange(3, 97) for _ in range(count)]


def schedule(seed):
    """A random schedule; None for keep_decode half of the time."""
    source = random.Random(seed)
    layers = tuple(sorted(source.sample(range(1, LAYERS), source.randint(1, LAYERS - 1))))
    keep, other = (tuple(round(source.uniform(0.1, 1.0), 2) for _ in layers) for _ in range(2))
    return {"layers": layers, "keep": keep, "keep_decode": other if source.random() < 0.5 else None, "max_revive": None}


def start(llm, policy, ids):
    state = new_sequence(llm.decoder, Plan(compute=policy), PROMPT, len(ids), llm.prefill_chunk)
    return state, prefill(llm.decoder, state, ids[:PROMPT], llm.prefill_chunk)


def held(state):
    """Per layer: the set of positions with units, and the set of those set aside."""
    units = [set(cache.live_positions().tolist()) for cache in state.caches]
    aside = [set(state.aside[layer].live.tolist()) if layer in state.aside else set() for layer in range(LAYERS)]
    return units, aside


@covered(
    (("chunk", "prune_generated"), [(1, False), (2, True), (7, False), (7, True)]),
    revive=["relaxed", "causal"],
    seed=range(3),
    max_revive=[None, 1, 5],
    near=[(1, 7), (5, 7), (5, 0), (9, 2)],
    voting=[(1, "max"), (6, "mean"), (9, "max"), (40, "max")],
    rank_layers=["last", "all"],
    sink=[0, 4],
)
def test_equals_the_pseudocode(revive, seed, chunk, prune_generated, max_revive, near, voting, rank_layers, sink):
    """Chunks also cut revived rows apart, and those that vote."""
    chosen = (
        schedule(seed) | {"max_revive": max_revive, "sink": sink} | dict(zip(("kernel", "before"), near, strict=True))
    )
    chosen |= dict(zip(("voters", "votes"), voting, strict=True))
    if rank_layers == "last" and chosen["layers"] != (1,):
        chosen["rank_layers"] = "last"
    assert_equals_the_pseudocode("llama", chunk, chosen, seed, revive, prune_generated)


@covered(name=["llama-9-3", "qwen3", "gemma2"], max_revive=[1, 3, 15, 40], chunk=[4, 64], together=2)
@pytest.mark.filterwarnings("ignore:lazyllm keeps the units")
def test_steps_that_leave_out_nothing_that_is_there_equal_the_pseudocode(name, max_revive, chunk):
    """Then rows of several tokens go through the kernel of few rows, where the family has one.

    With 1 or 3 the lower gates let nobody through, and what waits there is nobody's neighbour above.
    """
    chosen = {"layers": (1, 2, 3), "keep": (0.6, 0.6, 0.5), "keep_decode": (1.0,) * 3, "max_revive": max_revive}
    assert_equals_the_pseudocode(name, chunk, chosen, 5, "relaxed", False)


@covered(name=["gemma2", "qwen3", "gpt_oss"], revive=["relaxed", "causal"], prune_generated=[False, True])
@pytest.mark.filterwarnings("ignore:lazyllm keeps the units")
def test_equals_the_pseudocode_with_windows_caps_and_sinks(name, revive, prune_generated):
    """Layers 0 and 2 of gemma2 and gpt_oss have windows: what ranks the tokens there is the attention inside them."""
    chosen = {"layers": (1, 2, 3), "keep": (0.8, 0.7, 0.6), "keep_decode": (0.9, 0.5, 0.9), "max_revive": None}
    assert_equals_the_pseudocode(name, 9, chosen, 11, revive, prune_generated)


def assert_equals_the_pseudocode(name, chunk, schedule, seed, revive, prune_generated):
    """Logits, units and what is set aside, after every step of a generation."""
    llm, ids = LLM(small_model(name), prefill_chunk=chunk), tokens(seed)
    chosen = schedule | {"revive": revive, "prune_generated": prune_generated}
    reference = LazyReference(small_model(name), **chosen)
    state, logits = start(llm, LazyLLM(**chosen), ids)
    torch.testing.assert_close(logits, reference.step(ids[:PROMPT]), rtol=0, atol=1e-5)
    for token in ids[PROMPT:]:
        expected = reference.step([token])
        torch.testing.assert_close(decode(llm.decoder, [(state, token)])[0], expected, rtol=0, atol=1e-5)
        units, aside = held(state)
        assert units == [set(layer) for layer in reference.kv]
        assert aside == [set(layer) for layer in reference.aux]
    assert state.stats.rows_computed == sum(sum(layer.values()) for layer in reference.counts)
    assert state.stats.revived_rows == state.stats.rows_computed - sum(
        sum(1 for p in layer if p >= PROMPT) for layer in reference.kv
    ) - sum(prompt_rows(chosen["layers"], chosen["keep"]))  # fmt: skip


def prompt_rows(layers, keep, prompt=PROMPT):
    """Closed form: the survivors of each stage and the last token, in every layer of the stage."""
    rows, left = [], prompt - 1
    for layer in range(LAYERS):
        if layer in layers:
            left = max(1, math.ceil(keep[layers.index(layer)] * left - 1e-9))
        rows.append(left + 1)
    return rows


@covered(seed=range(8), revive=["relaxed", "causal"])
def test_invariants_after_every_step_of_a_ragged_batch(llm, seed, revive):
    """I3 to I7 and I10, for three sequences that prune and revive differently in the same steps."""
    policies = [LazyLLM(**schedule(3 * seed + i), revive=revive) for i in range(3)]
    texts = [tokens(seed + i) for i in range(3)]
    states = [start(llm, policy, ids)[0] for policy, ids in zip(policies, texts, strict=True)]
    for policy, state in zip(policies, states, strict=True):
        expected = prompt_rows(policy.layers, policy.keep)
        assert [cache.length for cache in state.caches] == expected == policy.layer_tokens(state.shape, PROMPT).rows
        assert state.stats.rows_computed == sum(expected)
        assert state.stats.revived_rows == 0
    seen = [[] for _ in states]
    for state, record in zip(states, seen, strict=True):
        state.observer = Record(record)
    for step in range(NEW):
        before = [held(state)[0] for state in states]
        for record in seen:
            record.clear()
        decode(llm.decoder, [(state, ids[PROMPT + step]) for state, ids in zip(states, texts, strict=True)])
        known = PROMPT + step + 1
        for policy, state, units_before, record in zip(policies, states, before, seen, strict=True):
            units, aside = held(state)
            assert units[0] == set(range(known))  # I3
            for layer in range(1, LAYERS):
                assert units[layer] <= units[layer - 1]  # I3
                assert not units[layer] & aside[layer]  # I4
                assert units[layer] | aside[layer] == units[layer - 1]  # I4
                assert not aside[layer] or layer in policy.layers
            assert all(now >= then for now, then in zip(units, units_before, strict=True))  # I10
            assert len(units[-1]) + sum(map(len, aside)) == known  # I6
            # I5: a row is computed where a unit appears, so never twice
            assert state.stats.rows_computed == sum(map(len, units))
            assert sum(len(a - b) for a, b in zip(units, units_before, strict=True)) == sum(
                p.rows for _, p, _ in record
            )
            check_selection(policy, record, known)


def check_selection(policy, record, known):
    """I3 and I7: what the layers of one decode step see."""
    before, left = set(range(known)), PROMPT
    ratios = policy.keep_decode or policy.keep
    last = [(layer, views) for layer, part, views in record if int(part.positions[-1]) == known - 1]
    assert [layer for layer, _ in last] == list(range(LAYERS))  # the current token is in every layer
    for layer, views in last:
        seen = {int(p) for view in views for p in view.positions}
        assert seen <= before
        assert known - 1 in seen
        if layer in policy.layers:
            left = max(1, math.ceil(ratios[policy.layers.index(layer)] * left - 1e-9))
        assert len(seen & set(range(PROMPT))) == left
        assert {p for p in seen if p >= PROMPT} == set(range(PROMPT, known))
        before = seen


def test_nothing_pruned_is_full_attention_bit_for_bit(llm):
    """I1, and with the pruning layers asked but keeping all: the same rows in the same order."""
    ids = tokens(1)
    expected = llm.logits(ids, decode_from=PROMPT)
    assert torch.equal(llm.logits(ids, decode_from=PROMPT, plan="lazyllm(keep=1.0)"), expected)
    got = llm.logits(ids, decode_from=PROMPT, plan="lazyllm(layers=[1, 3], keep=[1.0, 1.0], keep_decode=[1.0, 0.9999])")
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_layers_below_the_first_pruning_layer_equal_the_full_model(llm):
    """I2: keys and values of every token, of the prompt and fed."""
    ids = tokens(2)
    lazy, full = (start(llm, policy, ids)[0] for policy in (LazyLLM(layers=(2,), keep=0.3), LazyLLM(keep=1.0)))
    for token in ids[PROMPT:]:
        decode(llm.decoder, [(lazy, token), (full, token)])
    for layer in range(2):
        for got, expected in zip(lazy.caches[layer].live(), full.caches[layer].live(), strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_one_pruning_layer_equals_stock_layers_on_the_kept_rows(llm):
    """I8: everyone below, the kept rows at their own positions above, causally."""
    ids, body = tokens(3)[:PROMPT], llm.model.model
    state, logits = start(llm, LazyLLM(layers=(2,), keep=0.25), ids)
    kept = state.caches[2].live_positions()
    hidden, positions = body.embed_tokens(torch.tensor([ids])), torch.arange(PROMPT)
    for index, block in enumerate(body.layers):
        if index == 2:
            hidden, positions = hidden[:, kept], kept
        rows = len(positions)
        mask = torch.full((1, 1, rows, rows), float("-inf")).triu(1)
        hidden = block(hidden, attention_mask=mask, position_embeddings=body.rotary_emb(hidden, positions[None]))
    expected = llm.model.lm_head(body.norm(hidden))[0, -1]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


def test_a_step_that_keeps_everything_fills_every_cell(llm):
    """I9: after it every token has been computed once in every layer, and nothing is set aside."""
    ids = tokens(4)
    state, _ = start(llm, LazyLLM(layers=(1, 2, 3), keep=0.3, keep_decode=1.0, max_revive=None), ids)
    waiting = sum(aside.count for aside in state.aside.values())
    assert waiting == sum(len(a) for a in held(state)[1]) > 0
    held_aside = sum(aside.nbytes for aside in state.aside.values())
    assert held_aside >= waiting * (state.shape.hidden * 4 + 8)  # memory that was filled before counts until it goes
    decode(llm.decoder, [(state, ids[PROMPT])])
    units, aside = held(state)
    assert units == [set(range(PROMPT + 1))] * LAYERS
    assert aside == [set()] * LAYERS
    assert state.stats.rows_computed == LAYERS * (PROMPT + 1)
    assert all(a.hidden.numel() == 0 for a in state.aside.values())  # the memory is back
    assert state.stats.aux_bytes >= held_aside


def test_the_cache_and_what_is_set_aside_never_exceed_full_attention(llm):
    """The paper's bound, in bytes, with a hidden state as large as a unit of one layer here."""
    ids = tokens(5)
    [out] = llm.generate([ids[:PROMPT]], SamplingParams(max_tokens=NEW, ignore_eos=True), plan="lazyllm(keep=0.3)")
    [full] = llm.generate([ids[:PROMPT]], SamplingParams(max_tokens=NEW, ignore_eos=True))
    assert out.stats.aux_bytes > 0
    assert out.stats.total_bytes <= full.stats.total_bytes
    assert out.stats.allocated_bytes < full.stats.allocated_bytes


def test_the_control_keeps_the_choice_of_prefill(llm):
    ids = tokens(6)
    state, _ = start(llm, LazyLLM(layers=(1, 3), keep=0.4, revive="never"), ids)
    chosen = [set(cache.live_positions().tolist()) for cache in state.caches]
    for token in ids[PROMPT:]:
        decode(llm.decoder, [(state, token)])
    new = set(range(PROMPT, len(ids)))
    assert [set(cache.live_positions().tolist()) for cache in state.caches] == [units | new for units in chosen]
    assert (state.stats.revived_rows, sum(a.count for a in state.aside.values())) == (0, 0)


def test_the_sink_counts_in_the_share(llm):
    state, _ = start(llm, LazyLLM(layers=(1,), keep=0.1, sink=2), tokens(7))
    units = state.caches[1].live_positions().tolist()
    assert {0, 1, PROMPT - 1} <= set(units)
    assert len(units) == math.ceil(0.1 * (PROMPT - 1)) + 1


@pytest.mark.parametrize("most", [0, 2])
def test_max_revive_bounds_a_step(llm, most):
    """Without the bound these steps revive more; the tokens left out are neither computed nor seen."""
    ids, free = tokens(8), LazyLLM(layers=(1, 2), keep=0.2, keep_decode=0.5, max_revive=None)
    bounded = LazyLLM(layers=(1, 2), keep=0.2, keep_decode=0.5, max_revive=most)
    revived = []
    for policy in (free, bounded):
        state, _ = start(llm, policy, ids)
        before = held(state)[0]
        decode(llm.decoder, [(state, ids[PROMPT])])
        units, aside = held(state)
        gained = [len(now - then) - 1 for now, then in zip(units, before, strict=True)]
        revived.append(gained)
        for layer in (1, 2, 3):
            assert units[layer] | aside[layer] == units[layer - 1]
    assert revived[0][1] > most
    assert len(set().union(*(now - then for now, then in zip(units, before, strict=True))) - {PROMPT}) <= most


@covered(name=["mistral", "gemma2", "gpt_oss", "qwen3"], revive=["relaxed", "causal"])
def test_every_cell_is_filled_with_windows_caps_and_sinks(name, revive):
    """Revived rows of families with more to their attention; windows keep what a revived row may need."""
    llm, ids = LLM(small_model(name), prefill_chunk=9), tokens(9)
    policy = LazyLLM(layers=(2,), keep=0.3, keep_decode=1.0, max_revive=None, revive=revive)
    state, _ = start(llm, policy, ids)
    for token in ids[PROMPT:]:
        assert decode(llm.decoder, [(state, token)]).isfinite().all()
    assert held(state)[0] == [set(range(len(ids)))] * LAYERS


@covered(name=["llama", "mistral", "gemma2", "gpt_oss"], revive=["relaxed", "causal"])
def test_chunks_and_batch_mates_change_nothing(name, revive):
    """Blocks cut the revived rows of a batch anywhere, also so that one of them is alone in a block."""
    plan = Plan(compute=LazyLLM(layers=(1,), keep=0.3, keep_decode=0.8, revive=revive))
    texts = [tokens(20 + i) for i in range(3)]
    llm = LLM(small_model(name), prefill_chunk=64)
    alone = [llm.logits(ids, decode_from=PROMPT, plan=plan) for ids in texts]
    for chunk in (1, 3, 8):
        llm.prefill_chunk = chunk
        started = [start(llm, plan.compute, ids) for ids in texts]
        rows = [torch.stack([logits for _, logits in started])]
        for step in range(PROMPT, len(texts[0])):
            batch = [(state, ids[step]) for (state, _), ids in zip(started, texts, strict=True)]
            rows.append(decode(llm.decoder, batch))
        torch.testing.assert_close(torch.stack(rows, 1), torch.stack(alone), rtol=0, atol=1e-5)


def test_windowed_layers_read_no_more_than_their_window():
    """Units that left the window stay for rows to be revived; the current token does not read them."""
    llm = LLM(small_model("mistral"), prefill_chunk=9)
    with pytest.warns(UserWarning, match="sliding window"):
        [out] = llm.generate(
            [tokens(3)[:PROMPT]],
            SamplingParams(max_tokens=9, ignore_eos=True),
            plan="lazyllm(max_revive=0, keep_decode=None)",
        )
    assert out.stats.units_read <= out.stats.units_full


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ("lazyllm(cumulative=[0.2, 0.4, 0.1])", "grows"),
        ("lazyllm(layers=[2, 1], keep=0.5)", "rise"),
        ("lazyllm(layers=[0, 1], keep=0.5)", "layer 0"),
        ("lazyllm(layers=[4], keep=0.5)", "0 to 3"),
        ("lazyllm(layers=[1], keep=0)", "above 0"),
        ("lazyllm(keep=1.2)", "at most 1"),
        ("lazyllm(layers=[1], keep=[0.5, 0.5])", "one for each"),
        ("lazyllm(layers=[1])", "give keep"),
        ("lazyllm(layers=[])", "prunes nowhere"),
        ("lazyllm(revive='maybe')", "'relaxed', 'causal', 'never'"),
        ("lazyllm(keep=0.5, cumulative=[0.5, 0.4, 0.3])", "give one"),
        ("lazyllm(max_revive=-1)", "at least 0"),
        ("lazyllm(kernel=2)", "kernel=2 must be odd.*use 3"),
        ("lazyllm(sink=-1)", "sink=-1 must be at least 0"),
        ("lazyllm(revive='never', keep_decode=0.5)", "keep_decode=0.5 changes nothing here: it needs revive"),
        ("lazyllm + streaming", "ranks the tokens of a prompt at its end"),
    ],
)
def test_bad_schedules(llm, plan, says):
    with pytest.raises(PlanError, match=says):
        llm.logits(tokens(0), decode_from=PROMPT, plan=plan)


def test_setting_aside_must_pay():
    """One KV head: a hidden state weighs as much as the units of two layers, so the last pruning layer is 2."""
    llm = LLM(small_model("llama"))
    llm.model.config.num_key_value_heads = 1
    shape = shape_of(llm.model.config, 4)
    assert (shape.hidden, 2 * shape.kv_heads * shape.head_dim) == (64, 32)
    with pytest.raises(PlanError, match="at 2 at most"):
        Plan.parse("lazyllm(layers=[3], keep=0.5)").validate(shape)
    Plan.parse("lazyllm(layers=[2], keep=0.5)").validate(shape)
    Plan.parse("lazyllm(layers=[3], keep=0.5, revive='never')").validate(shape)
    assert max(gate.layer for gate in LazyLLM().gates(shape)) == 2


def test_the_memory_of_a_sequence_that_has_ended_goes_back(llm):
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    with llm.session(plan="lazyllm(keep=0.3)", max_tokens=3) as session:
        session.feed(tokens(1)[:PROMPT])
        [request] = llm.check([tokens(1)[:PROMPT]], params, plan="lazyllm(keep=0.3)")
        completion = session.generate(request)
        assert completion.finish_reason == "length"
        assert completion.stats.aux_bytes > 0
        assert (session.state.caches, session.state.aside) == ([], {})
