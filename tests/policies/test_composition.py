"""Compute and keep policies at once, and a read policy on top, against lists of units over the stock layers."""

import random

import pytest
import torch
from composition_reference import CompositionReference

from covering import covered, covering, marked
from driving import advance, decode, logits_of, prefill
from locret_reference import small_llm
from winnow import Plan
from winnow.engine.services import admit
from winnow.errors import PlanError
from winnow.runtime.observer import Observer

LAYERS, KV_HEADS, PROMPT = 4, 2, 31
FAMILIES = ("llama", "mistral", "gemma2", "gpt_oss", "smollm3")  # plain, windowed, soft-capped, sinks, unrotated

LOCRET = "locret(budget=9, chunk=6, sink=0, stabilizers=3, local=4)"
ORIGINAL = "locret(budget=5, chunk=4, sink=0, stabilizers=2, local=0, decode_chunk=3, positions='original')"
SMALL = "locret(budget=3, chunk=5, sink=0, stabilizers=1, local=2, decode_chunk=4)"
BOS = "speed(cutoff=2, decode_from='last:3')"
LATE = "speed(cutoff=1, anchors='none', decode_from='last:14')"
SEVERAL = "speed(cutoff=3, anchors='first:4+last:5', decode_from='last:2')"
SCATTERED = "speed(cutoff=2, anchors='random:6', decode_from='last:5')"
ALONE = "speed(cutoff=2, decode_from='last:3', self_only=True)"
PAPER = "kernel=1, voters=1, rank_layers='last', sink=0"  # how lazyllm ranks
RELAXED = f"lazyllm(layers=(1, 2), keep=(0.5, 0.4), keep_decode=None, max_revive=None, {PAPER})"
CAUSAL = f"lazyllm(layers=(1, 3), keep=(0.6, 0.5), revive='causal', keep_decode=(0.4, 0.7), max_revive=None, {PAPER})"
NEVER = f"lazyllm(layers=(2,), keep=(0.5,), revive='never', {PAPER})"
RETURNING = f"lazyllm(layers=(2,), keep=(0.3,), keep_decode=(0.8,), max_revive=None, {PAPER})"

SPEED = [
    f"{BOS} + {SMALL}",
    f"{LATE} + {LOCRET}",
    f"{SEVERAL} + {ORIGINAL}",
    f"{SCATTERED} + {SMALL}",
    f"{ALONE} + {LOCRET}",
    f"{BOS} + h2o(budget=3, chunk=6, recent=1, local=2, positions='compact', decode_chunk=2)",
    f"{SCATTERED} + h2o(budget=5, chunk=6, recent=2, local=4, decode_chunk=None)",
    f"{LATE} + snapkv(budget=6, chunk=7, window=3, kernel=3, local=4)",
    f"{SCATTERED} + snapkv(budget=4, chunk=None, window=2, kernel=3, pooling='max', local=0, decode_chunk=3,"
    " positions='compact')",
    f"{SEVERAL} + scissorhands(budget=4, chunk=6, window=9, recent=1, local=2, decode_chunk=3, positions='compact')",
]
STREAMING = [
    f"{BOS} + streaming(sink=3, recent=9)",
    f"{LATE} + streaming(sink=2, recent=4)",
    f"{SEVERAL} + streaming(sink=3, recent=9)",
    f"{SCATTERED} + streaming(sink=0, recent=5)",
]
LAZY = [
    f"{RELAXED} + {LOCRET}",
    f"{RELAXED} + {ORIGINAL}",
    f"{CAUSAL} + {SMALL}",
    f"{NEVER} + {SMALL}",
    f"{RETURNING} + {ORIGINAL}",
    f"{RETURNING} + locret(budget=7, chunk=None, local=5)",
]
EVERYWHERE = [SPEED[0], SPEED[5], SPEED[9], *STREAMING[1:3], *LAZY[1:3]]
FULL = f"{BOS} + locret(budget=12, chunk=6, sink=0, stabilizers=3, local=4)"
READ = "slowfast(sink=1, budget=3, recent=3, bootstrap=6, trigger='periodic', interval={}, selector='{}')"


@pytest.fixture
def ids():
    """42 different tokens: in the first layer a score depends on the token alone."""
    return random.Random(1).sample(range(3, 97), 42)


def start(llm, plan, ids):
    """A sequence before its prompt, and the prompt."""
    return admit(llm.decoder, llm.tokenizer, Plan.parse(plan), ids[:PROMPT], len(ids) - PROMPT, llm.prefill_chunk)


def reference_of(llm, plan, ids, state):
    plan, deep = Plan.parse(plan), state.deep.positions
    windows, heads = llm.decoder.shape.windows, llm.decoder.default_heads
    return CompositionReference(llm.model, windows, plan, PROMPT, len(ids), deep, heads)


def held(state):
    """Positions, [layer][kv_head]."""
    return [cache.live_positions().expand(KV_HEADS, -1).tolist() for cache in state.caches]


def assert_same(got, expected, atol=1e-5):
    assert not expected.isnan().any()
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


PLAIN = [("llama", plan) for plan in SPEED + STREAMING + LAZY]
OTHERS = [(name, plan) for name in FAMILIES[1:] for plan in EVERYWHERE]


@pytest.mark.parametrize(("name", "plan"), marked(PLAIN + OTHERS, PLAIN + covering(OTHERS, together=1)))
@pytest.mark.filterwarnings("ignore:lazyllm keeps the units that leave a sliding window")
def test_equals_the_reference(name, plan, ids):
    """Logits, what every head holds, rows, units and bytes, after the prompt and after every step."""
    llm = small_llm(name, prefill_chunk=64)
    state, prompt = start(llm, plan, ids)
    reference = reference_of(llm, plan, ids, state)
    got, expected = [prefill(llm.decoder, state, prompt, 64)], []
    for token in ids[:PROMPT]:
        row = reference.step(token)
    expected.append(row)
    for token in [None, *ids[PROMPT:]]:
        if token is not None:
            got.append(decode(llm.decoder, [(state, token)])[0])
            expected.append(reference.step(token))
        units = [[[unit.position for unit in head] for head in heads] for heads in reference.units]
        assert held(state) == units
        state.measure()
        bytes_held = sum(len(head) for heads in units for head in heads) * llm.decoder.shape.unit_bytes
        assert state.stats.cache_bytes == bytes_held
        assert (state.stats.rows_computed, state.stats.units_read) == (reference.rows, reference.read)
    assert_same(torch.stack(got), torch.stack(expected))


@pytest.mark.parametrize("plan", SPEED + STREAMING + LAZY)
def test_each_policy_acts(plan, ids):
    """Neither leaves the other's logits as they are."""
    llm = small_llm()
    together = llm.logits(ids, decode_from=PROMPT, plan=plan)
    for alone in plan.split(" + "):
        assert (together - llm.logits(ids, decode_from=PROMPT, plan=alone)).abs().max() > 1e-3


@covered(plan=SPEED + STREAMING + LAZY, chunk=[1, 4])
def test_how_the_prompt_arrives_changes_nothing(plan, chunk, ids):
    llm = small_llm(prefill_chunk=64)
    expected = llm.logits(ids, decode_from=PROMPT, plan=plan)
    llm.prefill_chunk = chunk
    assert_same(llm.logits(ids, decode_from=PROMPT, plan=plan), expected)


@covered(
    compute=[BOS, SEVERAL, RELAXED, CAUSAL, NEVER],
    keep=["locret(budget=1000)", "locret(budget=1000, positions='original', decode_chunk=2)"],
    name=["llama", "gemma2"],
)
@pytest.mark.filterwarnings("ignore:lazyllm keeps the units that leave a sliding window")
def test_a_budget_never_reached_leaves_the_compute_policy_alone(name, keep, compute, ids):
    llm = small_llm(name)
    expected = llm.logits(ids, decode_from=PROMPT, plan=compute)
    assert_same(llm.logits(ids, decode_from=PROMPT, plan=f"{compute} + {keep}"), expected)


@covered(compute=["speed(cutoff=4)", "lazyllm(keep=1.0)"], keep=[LOCRET, ORIGINAL, SMALL])
def test_a_compute_policy_turned_off_leaves_the_keep_policy_alone(keep, compute, ids):
    llm = small_llm()
    expected = llm.logits(ids, decode_from=PROMPT, plan=keep)
    assert torch.equal(llm.logits(ids, decode_from=PROMPT, plan=f"{compute} + {keep}"), expected)


@covered(name=["llama", "gpt_oss"], keep=[LOCRET, SMALL, ORIGINAL])
def test_below_the_cutoff_everything_is_as_without_speed(name, keep, ids):
    """The units of the lower layers, to the bit: what happens above never comes back down in prefill."""
    llm = small_llm(name)
    (state, prompt), (alone, _) = start(llm, f"{BOS} + {keep}", ids), start(llm, keep, ids)
    for each in (state, alone):
        prefill(llm.decoder, each, prompt, llm.prefill_chunk)
    for mine, its in zip(state.caches[:2], alone.caches[:2], strict=True):
        for ours, theirs in zip(mine.live(), its.live(), strict=True):
            assert torch.equal(ours, theirs)


class Reads(Observer):
    """What the last decode step read, [layer][kv_head] positions."""

    def attended(self, attended):
        views = [view.positions.expand(KV_HEADS, -1) for view in attended.views]
        self.of = [] if attended.layer == 0 else self.of
        self.of.append([set(head) for head in torch.cat(views, 1).tolist()])


@covered(
    selector=["attention", "alpha_fair"],
    keep=[FULL, f"{BOS} + {ORIGINAL}", f"{SCATTERED} + {LOCRET}"],
    name=["llama", "gemma2"],
)
def test_the_full_plan_equals_the_reference_that_reads_the_same(name, keep, selector, ids):
    """And a fast step reads of what each head holds: the first, three selected, the last three. What has left a window
    since it was selected may be read, and is not seen."""
    llm = small_llm(name)
    state, prompt = start(llm, f"{keep} + {READ.format(4, selector)}", ids)
    reference = reference_of(llm, keep, ids, state)
    got = [prefill(llm.decoder, state, prompt, llm.prefill_chunk)]
    state.observer, fast = Reads(), 0
    expected = [reference.step(token) for token in ids[:PROMPT]][-1:]
    for token in ids[PROMPT:]:
        before = state.stats.units_read
        got.append(decode(llm.decoder, [(state, token)])[0])
        reference.only = state.observer.of
        there = [[[u.position for u in head] for head in heads] for heads in reference.units]
        expected.append(reference.step(token))
        read = state.observer.of
        if not state.reader.slow:
            fast += 1
            current = reference.known - 1
            for layer, window in enumerate(llm.decoder.shape.windows):
                for head, kept in enumerate(there[layer]):
                    mine = [*kept, current]
                    assert len(read[layer][head]) == min(7, len(mine))
                    assert set(mine[-3:]) <= read[layer][head]
                    assert window is not None or {mine[0]} <= read[layer][head] <= set(mine)
        assert state.stats.units_read - before == sum(max(map(len, heads)) for heads in read) * KV_HEADS
    assert fast >= 3
    assert_same(torch.stack(got), torch.stack(expected))


def test_units_read_by_the_full_plan_in_closed_form(ids):
    """Slow: 12 + 4 and what is new below K, the anchor, 3 and what is new above; fast: seven of them at most."""
    llm = small_llm()
    state, prompt = start(llm, f"{FULL} + {READ.format(4, 'attention')}", ids)
    prefill(llm.decoder, state, prompt, llm.prefill_chunk)
    assert [cache.length for cache in state.caches] == [16, 16, 4, 4]
    for step, token in enumerate(ids[PROMPT:], 1):
        before = state.stats.units_read
        decode(llm.decoder, [(state, token)])
        assert state.reader.slow == (step % 4 == 0)
        most = 100 if state.reader.slow else 7
        assert state.stats.units_read - before == KV_HEADS * 2 * (min(16 + step, most) + min(4 + step, most))


@pytest.mark.parametrize("plan", [FULL, f"{BOS} + {ORIGINAL}", f"{NEVER}"])
def test_every_step_slow_is_the_plan_without_it(plan, ids):
    llm = small_llm()
    expected = llm.logits(ids, decode_from=PROMPT, plan=plan)
    got = llm.logits(ids, decode_from=PROMPT, plan=f"{plan} + {READ.format(1, 'alpha_fair')}")
    assert_same(got, expected)


ENSEMBLE = [f"{FULL} + {READ.format(3, 'alpha_fair')}", f"{RELAXED} + {LOCRET}", f"{CAUSAL} + {ORIGINAL}", SPEED[0]]


@covered(plan=ENSEMBLE, chunk=[1, 3, 64])
def test_chunks_mates_forks_and_dead_memory_change_nothing(plan, chunk, ids):
    """All at once: others prefill and decode beside it, a fork goes its own way, memory without units is NaN."""
    llm = small_llm()
    expected = llm.logits(ids, decode_from=PROMPT, plan=plan)
    (state, prompt), mates = start(llm, plan, ids), [start(llm, mate, ids[::-1])[0] for mate in (plan, "full", FULL)]
    for first in range(0, PROMPT, chunk):
        [hidden] = advance(llm.decoder, [(state, prompt[first : first + chunk])], decode=False)
        spoil(state)
    rows, twin = [logits_of(llm.decoder, hidden[-1:])[0]], state.fork()
    for step, token in enumerate(ids[PROMPT:]):
        batch = [(mate, ids[2 * step : 2 * step + 2]) for mate in mates] + [(state, [token])]
        hidden = advance(llm.decoder, batch, decode=[False] * len(mates) + [True])
        rows.append(logits_of(llm.decoder, hidden[-1][-1:])[0])
        decode(llm.decoder, [(twin, ids[step])])
        spoil(state)
    assert_same(torch.stack(rows), expected)


@torch.inference_mode()
def spoil(state):
    """Keys, values and positions that no live unit has."""
    for cache in state.caches:
        for dead in (slice(cache.head, cache.start), slice(cache.stop, None)):
            for memory in (cache.slab.keys, cache.slab.values):
                memory[:, dead] = torch.nan
            cache.positions[..., dead] = -(10**9)
    for aside in state.aside.values():
        aside.hidden[aside.count :] = torch.nan


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (f"{BOS} + sirllm", "what comes out of the last layer"),
        (f"{RELAXED} + sirllm", "what comes out of the last layer"),
        (f"pop(cutoff=2) + {LOCRET}", "makes units without rows"),
        (f"pop(cutoff=2) + {SPEED[5].split(' + ')[1]}", "makes units without rows"),
        (f"{RELAXED} + h2o", "ranks the tokens of a prompt at its end"),
        (f"{NEVER} + snapkv", "ranks the tokens of a prompt at its end"),
        (f"{NEVER} + streaming", "ranks the tokens of a prompt at its end"),
        ("static_prune(layers=2, keep=0.5) + streaming", "ranks the tokens of a prompt at its end"),
        (f"static_prune(layers=2, keep=0.5) + {LOCRET}", "evicts tokens from the layers below"),
        (f"{RELAXED} + {LOCRET} + {READ.format(4, 'attention')}", "use two of the three"),
    ],
)
def test_what_does_not_go_together_is_refused(plan, says, ids):
    llm = small_llm()
    with pytest.raises(PlanError, match=says):
        llm.logits(ids, decode_from=PROMPT, plan=plan)
