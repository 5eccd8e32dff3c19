"""Locret against lists of units over the stock model, and what its definition promises about every unit it keeps."""

import random
from dataclasses import replace

import pytest
import torch

from covering import covered
from driving import advance, decode, logits_of, prefill
from locret_reference import LocretReference, locret, small_llm
from models import CONFIGS, WINDOW, small_model
from winnow import SamplingParams
from winnow.engine.services import admit
from winnow.policies.keep.budgeted import best
from winnow.runtime.observer import Observer

LAYERS, KV_HEADS, PROMPT = 4, 2, 41
SETTINGS = {
    "the paper": {"budget": 12, "chunk": 7, "sink": 0, "stabilizers": 4, "local": 4},
    "stabilizers beyond a chunk": {
        "budget": 12, "chunk": 5, "sink": 0, "stabilizers": 9, "local": 0, "positions": "original",
    },
    "with sinks": {"budget": 12, "chunk": 7, "sink": 3, "stabilizers": 4, "local": 4, "decode_chunk": 3},
    "below the window": {"budget": 5, "chunk": 4, "sink": 0, "stabilizers": 2, "local": 3, "decode_chunk": 4},
    "every new token": {
        "budget": 6, "chunk": None, "sink": 0, "stabilizers": 3, "local": 5, "positions": "original", "decode_chunk": 1,
    },
}  # fmt: skip


@pytest.fixture
def llm():
    return small_llm()


@pytest.fixture
def ids():
    """52 different tokens: in the first layer a score depends on the token alone."""
    return random.Random(7).sample(range(3, 97), 52)


def fresh(llm, plan, ids, prompt=PROMPT):
    return admit(llm.decoder, llm.tokenizer, plan, ids[:prompt], len(ids) - prompt, llm.prefill_chunk)[0]


def feed(llm, state, ids, prompt=PROMPT):
    """Token by token; yields the tokens so far after each, whatever was evicted by then being gone."""
    for index in range(state.position, len(ids)):
        advance(llm.decoder, [(state, [ids[index]])], decode=index >= prompt)
        yield index + 1


def kept(state):
    """Positions, [layer][kv_head]."""
    return [cache.live_positions().expand(KV_HEADS, -1).tolist() for cache in state.caches]


def assert_same(got, expected, atol=1e-5):
    assert not expected.isnan().any()
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


@covered(setting=SETTINGS, name=CONFIGS)
def test_every_family_equals_the_reference(name, setting, ids):
    llm = small_llm(name)
    reference = LocretReference(small_model(name), llm.decoder.default_heads, **SETTINGS[setting])
    expected = reference.logits(ids, PROMPT)
    assert_same(llm.logits(ids, decode_from=PROMPT, plan=locret(**SETTINGS[setting])), expected)
    full = llm.logits(ids)[PROMPT - 1 :]
    acts = any(map(reference.acts, range(LAYERS)))
    assert ((expected - full).abs().max() > 1e-3) == acts


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_units_of_every_head_are_those_of_the_reference(setting, llm, ids):
    reference = LocretReference(small_model(), llm.decoder.default_heads, **SETTINGS[setting])
    reference.logits(ids, PROMPT)
    noted, state = dict(reference.noted), fresh(llm, locret(**SETTINGS[setting]), ids)
    seen = 0
    for tokens in feed(llm, state, ids):
        if tokens in noted:
            assert kept(state) == noted[tokens]
            seen += 1
    assert seen == len(noted) > 10
    assert kept(state)[0][0] != kept(state)[0][1]  # heads differ
    for cache, heads in zip(state.caches, reference.units, strict=True):
        expected = torch.tensor([[unit.score for unit in units] for units in heads])
        if SETTINGS[setting].get("decode_chunk") is None:  # what comes after the last eviction is not scored
            expected[cache.live_positions() >= PROMPT - SETTINGS[setting]["local"]] = 0
        assert_same(cache.live_scores(), expected, atol=1e-6)


@covered(positions=["compact", "original"], name=CONFIGS)
def test_a_budget_never_reached_is_full_attention(name, positions, ids):
    """Just never: the budget is what the prompt has before its tail, and nothing is evicted after it."""
    llm = small_llm(name)
    plan = locret(budget=PROMPT - 4, chunk=7, sink=0, stabilizers=3, local=4, positions=positions)
    assert_same(llm.logits(ids, decode_from=PROMPT, plan=plan), llm.logits(ids)[PROMPT - 1 :])


class Scores(Observer):
    """The scores [kv_heads, tokens] of every token in every layer, by the heads; 0 where no eviction is to come."""

    def __init__(self, heads):
        self.heads = heads
        self.of = [torch.empty(KV_HEADS, 0) for _ in range(LAYERS)]

    def projected(self, layer, part, q, k, v, scale):
        to_come = part.sequence.boundary() is not None
        self.of[layer] = torch.cat((self.of[layer], self.heads(layer, q, k, v) * to_come), 1)


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_stays_are_the_best_and_the_newest_and_scores_never_change(setting, llm, ids):
    parameters = SETTINGS[setting]
    state = fresh(llm, locret(**parameters), ids)
    state.observer = observer = Scores(llm.decoder.default_heads)
    before, boundaries = [[[]] * KV_HEADS] * LAYERS, 0
    boundary = state.boundary()
    for tokens in feed(llm, state, ids):
        now = kept(state)
        for layer in range(LAYERS):
            own = observer.of[layer].gather(1, torch.tensor(now[layer]))
            assert torch.equal(state.caches[layer].live_scores(), own)
            for head in range(KV_HEADS):
                there, score = [*before[layer][head], tokens - 1], observer.of[layer][head].tolist()
                if tokens == boundary:
                    newest = 0 if tokens == PROMPT - parameters["local"] else parameters["stabilizers"]
                    sink = parameters["sink"]
                    rest = sorted(there[sink : len(there) - newest], key=score.__getitem__, reverse=True)
                    best = rest[: parameters["budget"] - newest - sink] + there[len(there) - newest :]
                    there = [*there[:sink], *sorted(best)]
                assert now[layer][head] == there
        boundaries += tokens == boundary
        before, boundary = now, state.boundary()
    assert boundaries >= 3


def test_stabilizers_reach_back_and_the_last_chunk_protects_nothing(llm, ids):
    """Nine stabilizers and chunks of five: the newest nine tokens stay everywhere, but not after the last chunk."""
    state = fresh(llm, locret(budget=12, chunk=5, sink=0, stabilizers=9, local=4), ids)
    end = PROMPT - 4
    for tokens in feed(llm, state, ids[:PROMPT]):
        newest = set(range(tokens - 9, tokens))
        stays = [newest <= set(head) for layer in kept(state) for head in layer]
        if 12 < tokens < end and tokens % 5 == 0:
            assert all(stays)
            assert {len(head) for layer in kept(state) for head in layer} == {12}
        if tokens == end:
            assert not any(stays)


def test_scores_are_of_the_raw_projections_queries_keys_values(llm, ids):
    caught = {}

    def catch(layer, name):
        return lambda module, args, out: caught.setdefault((layer, name), []).append(out[0])

    handles = [
        getattr(block.self_attn, name).register_forward_hook(catch(layer, name))
        for layer, block in enumerate(llm.decoder.tree.model.layers)
        for name in ("q_proj", "k_proj", "v_proj")
    ]
    state = fresh(llm, locret(budget=12, chunk=7, sink=0, stabilizers=4, local=4), ids)
    prefill(llm.decoder, state, ids[:PROMPT], chunk=16)
    for handle in handles:
        handle.remove()
    heads = llm.decoder.default_heads
    for layer, cache in enumerate(state.caches):
        z = torch.cat([torch.cat(caught[layer, name]) for name in ("q_proj", "k_proj", "v_proj")], 1)
        assert z.shape == (PROMPT, (4 + 2 + 2) * 16)
        hidden = z @ heads.first[layer].T
        scores = (hidden * hidden.sigmoid()) @ heads.second[layer].T  # SiLU, [tokens, kv_heads]
        scores[PROMPT - 4 :] = 0  # no eviction is to come
        assert_same(cache.live_scores(), scores.T.gather(1, cache.live_positions()), atol=1e-6)


@covered(name=["llama", "gemma2"], setting=SETTINGS)
def test_memory_without_live_units_may_hold_anything(setting, name, ids):
    """Keys, values, scores and positions that no live unit has are spoilt after every step."""
    llm = small_llm(name)
    expected = llm.logits(ids, decode_from=PROMPT, plan=locret(**SETTINGS[setting]))
    state, rows = fresh(llm, locret(**SETTINGS[setting]), ids), []
    for start in range(0, PROMPT, 3):
        [hidden] = advance(llm.decoder, [(state, ids[start : min(start + 3, PROMPT)])], decode=False)
        spoil(state)
    rows.append(logits_of(llm.decoder, hidden[-1:])[0])
    for token in ids[PROMPT:]:
        rows.append(decode(llm.decoder, [(state, token)])[0])
        spoil(state)
    assert_same(torch.stack(rows), expected)


@torch.inference_mode()
def spoil(state):
    for cache in state.caches:
        for dead in (slice(cache.head, cache.start), slice(cache.stop, None)):
            for memory in (cache.slab.keys, cache.slab.values, *([] if cache.scores is None else [cache.scores])):
                memory[:, dead] = torch.nan
            cache.positions[..., dead] = -(10**9)


@covered(at=[17, PROMPT - 2, PROMPT + 3], setting=SETTINGS)
def test_forks_are_independent(setting, at, llm, ids):
    """Forked in the middle of a chunk, in the tail, and in decode; the twin then reads other tokens."""
    plan = locret(**SETTINGS[setting])
    expected = llm.logits(ids, decode_from=PROMPT, plan=plan)
    other = ids[:at] + ids[at:][::-1]
    state, rows, ours = fresh(llm, plan, ids), [], []
    for index, token in enumerate(ids):
        if index == at:
            twin = state.fork()
        [hidden] = advance(llm.decoder, [(state, [token])], decode=index >= PROMPT)
        ours += [logits_of(llm.decoder, hidden)[0]] if index >= PROMPT - 1 else []
        if index >= at:
            [hidden] = advance(llm.decoder, [(twin, [other[index]])], decode=index >= PROMPT)
            rows += [logits_of(llm.decoder, hidden)[0]] if index >= PROMPT - 1 else []
    assert_same(torch.stack(ours), expected)
    alone = llm.logits(other, decode_from=PROMPT, plan=plan)
    assert_same(torch.stack(rows), alone[-len(rows) :])


ARRIVALS = {
    **SETTINGS,
    "one eviction": {"budget": 9, "chunk": None, "local": 0},
    "compact for good": {"budget": 9, "chunk": 6, "sink": 0, "stabilizers": 3, "local": 0, "decode_chunk": 1},
}


@covered(setting=ARRIVALS, chunk=[1, 3, 7, 64])
def test_how_the_prompt_arrives_changes_nothing(setting, chunk, llm, ids):
    plan = locret(**ARRIVALS[setting])
    expected = llm.logits(ids, decode_from=PROMPT, plan=plan)
    llm.prefill_chunk = chunk
    assert_same(llm.logits(ids, decode_from=PROMPT, plan=plan), expected)


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_equal_scores_are_told_apart_in_one_way(chunk, llm):
    """Repeated tokens have the same score in the first layer, but for rounding, which depends on how rows arrive."""
    plan = locret(budget=12, chunk=8, sink=0, stabilizers=3, local=4)
    for seed in range(3):
        source = random.Random(seed)
        ids = [source.randrange(3, 20) for _ in range(60)]
        llm.prefill_chunk = 7
        expected = llm.logits(ids, decode_from=56, plan=plan)
        llm.prefill_chunk = chunk
        assert_same(llm.logits(ids, decode_from=56, plan=plan), expected)


def test_of_equal_scores_the_newer_stays(llm):
    """One token over and over has one score in the first layer."""
    ids = [5] * (PROMPT + 3)
    state = fresh(llm, locret(budget=12, chunk=8, sink=0, stabilizers=3, local=0, decode_chunk=2), ids)
    for tokens in feed(llm, state, ids):
        if tokens in (24, PROMPT, PROMPT + 2):
            assert kept(state)[0] == [list(range(tokens - 12, tokens))] * KV_HEADS


def test_batch_mates_change_nothing(llm, ids):
    """Prompts of several lengths under several plans decode together; each equals itself alone."""
    params = SamplingParams(max_tokens=6, ignore_eos=True, logprobs=2)
    plans = ["full", *(str(locret(**parameters)) for parameters in SETTINGS.values())]
    prompts = [ids[:PROMPT], ids[5:30], ids[::-1], ids[10:], ids[:19], ids[3:48]]
    together = llm.generate(prompts, params, plan=plans)
    for index, (prompt, plan) in enumerate(zip(prompts, plans, strict=True)):
        [alone] = llm.generate([prompt], params, plan=plan)
        assert together[index].token_ids == alone.token_ids
        for got, expected in zip(together[index].logprobs, alone.logprobs, strict=True):
            assert got == pytest.approx(expected, abs=1e-5)
        timed = {"queue_s": 0, "ttft_s": 0, "total_s": 0}
        assert replace(together[index].stats, **timed) == replace(alone.stats, **timed)


@pytest.mark.parametrize("positions", ["compact", "original"])
def test_a_window_no_larger_than_the_budget_stays_as_it_is(positions, ids):
    llm = small_llm("gemma2")
    state = fresh(llm, locret(budget=WINDOW, chunk=5, sink=0, stabilizers=3, local=3, positions=positions), ids)
    for tokens in feed(llm, state, ids):
        for cache, window in zip(state.caches, llm.decoder.shape.windows, strict=True):
            if window is None:
                assert cache.scores is not None
                continue
            assert cache.scores is None
            assert cache.rotated
            assert cache.live_positions().tolist() == list(range(max(0, tokens - WINDOW + 1), tokens))


def test_a_window_larger_than_the_budget_is_compressed_to_what_it_can_see(ids):
    """The next row sees seven of them; all that stay are among these."""
    llm = small_llm("gemma2")
    state = fresh(llm, locret(budget=5, chunk=6, sink=0, stabilizers=2, local=3, decode_chunk=3), ids)
    assert {window for window in llm.decoder.shape.windows if window} == {WINDOW}
    boundary, seen = state.boundary(), 0
    for tokens in feed(llm, state, ids):
        if tokens == boundary:
            for heads, window in zip(kept(state), llm.decoder.shape.windows, strict=True):
                assert all(len(head) == 5 for head in heads)
                if window is not None:
                    assert all(head[0] > tokens - WINDOW for head in heads)
                    seen += 1
        boundary = state.boundary()
    assert seen > 10


@pytest.mark.parametrize("scores", [[3.7111594676971436, 3.7111966609954834, 0.5, 0.4], [0.0, 0.0, 0.0, 0.0]])
def test_no_score_falls_between_the_best_and_their_edge(scores):
    """The first two differ by the tolerance, rounded."""
    assert best(torch.tensor([scores]), 2).shape == (1, 2)


def test_scores_that_cancel_are_as_uncertain_as_the_largest():
    """Two units of one token, whose scores near 0 rounding has told apart, and which row is computed when decides how:
    the newer stays. Of scores that do not cancel, and of what is kept anyway, nothing follows."""
    most = torch.finfo(torch.float32).max
    scores = torch.tensor([[40.0, 3e-5, 5.0, -2e-5, -1.0, most], [40.0, -2e-5, 5.0, 3e-5, -1.0, most]])
    assert best(scores, 4, cancels=True).tolist() == [[0, 2, 3, 5]] * 2
    assert best(scores, 4).tolist() == [[0, 1, 2, 5], [0, 2, 3, 5]]
    apart = torch.tensor([[0.5, 3e-5, 0.7, -2e-5, -1.0, most]])
    assert best(apart, 4, cancels=True).tolist() == [[0, 1, 2, 5]]
