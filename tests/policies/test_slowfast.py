"""Slow-fast reading against the row-by-row reference, its invariants J1 to J11, its closed formulas, bad input."""

import random

import pytest
import torch
from transformers import LlamaConfig

import models
from covering import covered
from driving import decode, prefill
from models import CONFIGS, SMALL, small_model
from slowfast_reference import Every, Rules, SlowFastReference
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM, Plan, SamplingParams
from winnow.engine.services import admit
from winnow.errors import PlanError
from winnow.parameters import that_matter
from winnow.policies.read.slowfast import SlowFast
from winnow.policies.read.slowfast_reader import SlowFastReader
from winnow.runtime.observer import Observer

PROMPT = 35
# Seven units: fewer than the windows of the small models hold, so that layers with windows select too.
BASE = {
    "sink": 1, "budget": 3, "recent": 3, "bootstrap": 6, "trigger": "periodic", "interval": 4, "min_gap": 1,
    "recent_mode": "sliding", "selector": "attention",
}  # fmt: skip
OF_SELECTORS = {
    "attention": (), "pooled": ("pool",), "peaks": ("pool", "memory", "far", "half_life"), "persist": ("fusion",),
    "alpha_fair": ("prior", "suppression", "cross_head", "fusion"),
}  # fmt: skip
OPTIONS = {"pooled": {"pool": 3}, "peaks": {"pool": 3, "memory": 0.9, "far": 0.25, "half_life": 4}}
BYTES = {letter: 3 + ord(letter) for letter in ".?! \n"}
FIVE = ("llama", "qwen3", "gemma2", "gpt_oss", "smollm3-sliding")


@pytest.fixture(scope="module")
def llm_of():
    """Models by name, made once; their tokenizer is the byte-level one."""
    made = {}

    def get(name, chunk=10):
        if name not in made:
            made[name] = LLM(small_model(name), tokenizer=byte_tokenizer())
        made[name].prefill_chunk = chunk
        return made[name]

    return get


def tokens(count=60, seed=7):
    source = random.Random(seed)
    return [source.randrange(3, 97) for _ in range(count)]


def prose(count, seed):
    """Tokens with many ends of sentences."""
    source = random.Random(seed)
    marks = list(BYTES.values())
    return [source.choice(marks) if source.random() < 0.4 else source.randrange(70, 97) for _ in range(count)]


def slowfast(parameters):
    return SlowFast(**that_matter(SlowFast, SlowFast.matters, parameters))


class Given:
    """Slow where a run was."""

    def __init__(self, flags):
        self.flags = iter(flags)

    def slow(self, token, forced=False):
        return next(self.flags)


def rules(policy):
    if policy.trigger == "periodic":
        return Every(policy.interval)
    enders, skipped = (frozenset(BYTES[letter] for letter in letters) for letters in (".?!", " \n"))
    pairs = frozenset((ender, BYTES[" "]) for ender in enders)
    return Rules(enders, pairs, skipped, policy.interval, policy.min_gap, policy.cooldown, policy.trigger_on)


def expect(llm, policy, ids, prompt=PROMPT, when=None):
    """The reference, having run, and its logits."""
    reference = SlowFastReference(
        llm.model, when or rules(policy), llm.decoder.shape.windows,
        **{name: getattr(policy, name) for name in (
            "sink", "budget", "recent", "bootstrap", "recent_mode", "layer_groups", "publish_delay", "selector"
        )},
        options={name: getattr(policy, name) for name in OF_SELECTORS[policy.selector]},
    )  # fmt: skip
    return reference, reference.logits(ids, prompt)


def walk(llm, plan, ids, prompt=PROMPT, observer=None):
    """Logits after the prompt and after every other token, the state, and for every decode step what it cost."""
    state, seen = admit(llm.decoder, llm.tokenizer, plan, ids[:prompt], len(ids) - prompt, llm.prefill_chunk)
    state.observer = observer
    rows, steps = [prefill(llm.decoder, state, seen, llm.prefill_chunk)], []
    for token in ids[prompt:]:
        before = state.stats.units_read
        rows.append(decode(llm.decoder, [(state, token)])[0])
        steps.append((state.reader.slow, state.stats.units_read - before))
    return torch.stack(rows), state, steps


def assert_equals_reference(llm, policy, ids, prompt=PROMPT, acts=True):
    """Logits, and which steps were slow."""
    got, _, steps = walk(llm, Plan(read=policy), ids, prompt)
    when = Given([slow for slow, _ in steps]) if policy.trigger in ("random", "none") else None
    reference, expected = expect(llm, policy, ids, prompt, when)
    assert [slow for slow, _ in steps] == reference.slow[1:]
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    if acts:
        assert (got - llm.logits(ids)[prompt - 1 :]).abs().max() > 1e-3
        assert False in reference.slow[1:]
    return reference


@covered(recent_mode=["sliding", "anchored"], name=CONFIGS)
def test_equals_the_reference(llm_of, name, recent_mode):
    assert_equals_reference(llm_of(name), slowfast(BASE | {"recent_mode": recent_mode}), tokens(PROMPT + 14))


@covered(selector=OF_SELECTORS, name=FIVE)
def test_every_selector(llm_of, name, selector):
    """Group by group, with stale selections: what was selected last is then not what is read."""
    parameters = BASE | OPTIONS.get(selector, {}) | {"layer_groups": 2, "publish_delay": 1, "interval": 3}
    assert_equals_reference(llm_of(name), slowfast(parameters | {"selector": selector}), tokens())


ARMS = [
    {"selector": "alpha_fair"},
    {"selector": "alpha_fair", "prior": False},
    {"selector": "alpha_fair", "suppression": False},
    {"selector": "alpha_fair", "cross_head": False},
    {"selector": "alpha_fair", "fusion": "reverse"},
    {"selector": "persist", "fusion": "forward"},
    {"selector": "persist", "fusion": "reverse"},
    {"selector": "pooled", "pool": 1},
    {"selector": "pooled", "pool": 9},
    {"selector": "peaks", "pool": 4, "memory": 0.5},
    {"selector": "peaks", "pool": 5, "memory": 0.0},
    {"selector": "peaks", "pool": 2, "memory": 0.9, "half_life": 1, "far": 1.0},
    {"selector": "peaks", "pool": 2, "memory": 0.9, "half_life": None, "far": 0.0},
    # What was selected last is remembered, whether it has been read or not.
    {"selector": "peaks", "pool": 3, "memory": 0.9, "publish_delay": 3, "interval": 2},
    {"selector": "persist", "publish_delay": 3, "interval": 2},
]


@pytest.mark.parametrize("arm", ARMS, ids=str)
def test_every_part_of_a_selector(llm_of, monkeypatch, arm):
    """With four KV heads, more than two of which shun each other, and enough candidates to choose from."""
    monkeypatch.setitem(models.CONFIGS, "llama-4", lambda: LlamaConfig(**{**SMALL, "num_key_value_heads": 4}))
    parameters = BASE | {"budget": 6, "bootstrap": 3, **arm}
    reference = assert_equals_reference(llm_of("llama-4"), slowfast(parameters), tokens())
    assert len({tuple(head) for layer in reference.selected.values() for each in layer.values() for head in each}) > 10


@covered(
    (("min_gap", "cooldown", "interval"), [(1, 0, 50), (3, 2, 9), (6, 1, 6)]),
    trigger_on=["start", "end"],
    name=["llama", "gemma2"],
)
def test_sentences(llm_of, name, trigger_on, min_gap, cooldown, interval):
    trigger = {"trigger": "sentence", "trigger_on": trigger_on, "min_gap": min_gap, "cooldown": cooldown}
    policy = slowfast(BASE | trigger | {"interval": interval, "selector": "pooled", "pool": 3})
    reference = assert_equals_reference(llm_of(name), policy, prose(80, seed=min_gap))
    assert 2 < sum(reference.slow) < 30


@pytest.mark.parametrize("trigger", ["random", "none"])
def test_other_triggers(llm_of, trigger):
    reference = assert_equals_reference(llm_of("llama"), slowfast(BASE | {"trigger": trigger}), tokens(80))
    assert (trigger == "random") == any(reference.slow)


@covered(layer_groups=[1, 3], publish_delay=range(4), interval=[2, 5])
def test_stale_selections(llm_of, publish_delay, interval, layer_groups):
    """Also where one is made before the last one is read. What no layer has read yet is read at once."""
    parameters = {"interval": interval, "publish_delay": publish_delay, "layer_groups": layer_groups}
    for recent_mode in ("sliding", "anchored"):
        policy = slowfast(BASE | parameters | {"recent_mode": recent_mode})
        assert_equals_reference(llm_of("llama"), policy, tokens(50))
    assert_equals_reference(llm_of("gemma2"), policy, tokens(32), prompt=4, acts=False)


EDGES = {
    "no sink": {"sink": 0},
    "one recent": {"recent": 1},
    "nothing recent but what comes": {"recent": 0, "recent_mode": "anchored"},
    "neither": {"recent": 0, "sink": 0, "recent_mode": "anchored"},
    "one selected": {"budget": 1},
    "one row selects": {"bootstrap": 1},
    "more rows than recent": {"bootstrap": 9, "recent": 2},
    "more rows than a chunk": {"bootstrap": 25},
    "more rows than the prompt": {"bootstrap": 64},
    "rows that see no candidate": {"bootstrap": 64, "sink": 3, "recent": 1},
    "as many as there are": {"budget": PROMPT - 4},
    "as many as there are, anchored": {"budget": PROMPT - 4, "recent_mode": "anchored", "trigger": "none"},
    "more than there are": {"budget": PROMPT},
    "more than there ever will be": {"budget": 100},
}


@covered(edge=EDGES, name=["llama", "cohere2"])
def test_edges(llm_of, name, edge):
    policy = slowfast(BASE | {"selector": "alpha_fair"} | EDGES[edge])
    acts = "there are, anchored" not in edge and "ever" not in edge
    assert_equals_reference(llm_of(name), policy, tokens(PROMPT + 14), acts=acts)


@covered(prompt=[1, 2, 7, 15, 16, 17], trigger=["periodic", "sentence", "none"])
def test_short_prompts_grow(llm_of, prompt, trigger):
    """J3: all is read while there are fewer than 16 units, and the step that has them selects, whatever the trigger."""
    parameters = {"sink": 2, "budget": 9, "recent": 5, "trigger": trigger, "interval": 7}
    _, _, steps = walk(llm_of("llama"), Plan(read=slowfast(BASE | parameters)), tokens(40), prompt)
    forced = max(0, 16 - prompt)
    assert all(slow for slow, _ in steps[:forced])
    assert not steps[forced][0]
    if trigger == "none":
        assert not any(slow for slow, _ in steps[forced:])
        return
    assert_equals_reference(llm_of("llama"), slowfast(BASE | parameters), tokens(40), prompt)
    assert_equals_reference(llm_of("gemma3"), slowfast(BASE | {"trigger": trigger, "interval": 7}), tokens(40), prompt)


def test_a_text_too_short_to_select_from_is_asked_about_once(llm_of, monkeypatch):
    """In all layers together; from then on each selects."""
    asked: list[int] = []
    select = SlowFastReader.select

    def counted(reader, row, views):
        asked.append(row.position)
        return select(reader, row, views)

    monkeypatch.setattr(SlowFastReader, "select", counted)
    llm = llm_of("qwen3")
    with llm.session(plan=Plan(read=slowfast(BASE | {"budget": 20})), max_tokens=30) as session:
        session.feed(tokens()[:4])
        for token in tokens()[4:30]:
            session.feed([token])
    assert asked[:20] == list(range(4, 24))
    assert asked.count(22) == 1
    assert asked.count(23) == llm.decoder.shape.layers


@pytest.mark.parametrize("name", FIVE)
def test_every_step_slow_is_full_attention(llm_of, name):
    """J1."""
    llm, ids = llm_of(name), tokens()
    for parameters in ({"interval": 1}, {"interval": 1, "trigger": "random"}, {"interval": 1, "trigger": "sentence"}):
        got, _, steps = walk(llm, Plan(read=slowfast(BASE | parameters)), ids)
        torch.testing.assert_close(got, llm.logits(ids)[PROMPT - 1 :], rtol=0, atol=1e-5)
        assert all(slow for slow, _ in steps)


@pytest.mark.parametrize("selector", OF_SELECTORS)
def test_selecting_all_and_forgetting_nothing_is_full_attention(llm_of, selector):
    """J2: the packed copy and the units in place are one softmax (J8)."""
    llm, ids = llm_of("qwen3"), tokens()
    parameters = {"budget": PROMPT - 4, "recent_mode": "anchored", "trigger": "none", "selector": selector}
    got, _, steps = walk(llm, Plan(read=slowfast(BASE | parameters)), ids)
    torch.testing.assert_close(got, llm.logits(ids)[PROMPT - 1 :], rtol=0, atol=1e-5)
    assert not any(slow for slow, _ in steps)


def test_a_sliding_gap_is_not_read(llm_of):
    """J2: with everything selected and recent units sliding, the first fast step misses exactly one unit."""
    llm, ids = llm_of("llama"), tokens()
    policy = slowfast(BASE | {"budget": PROMPT - 4, "trigger": "none"})
    reference, _ = expect(llm, policy, ids)
    full = [set(range(PROMPT + step)) for step in range(len(ids) - PROMPT + 1)]
    gaps = [all_ - heads[0] for all_, heads in zip(full, reference.reads[0], strict=True)]
    assert gaps[1:3] == [{PROMPT - 3}, {PROMPT - 3, PROMPT - 2}]
    assert_equals_reference(llm, policy, ids)


def test_a_slow_step_is_dense(llm_of):
    """J10: in one layer, where nothing comes from earlier rows but their units, its output is full attention's."""
    model = small_model("llama")
    model.model.layers = model.model.layers[:1]
    model.config.num_hidden_layers = 1
    llm, ids = LLM(model), tokens()
    got, _, steps = walk(llm, Plan(read=slowfast(BASE)), ids)
    off = (got - llm.logits(ids)[PROMPT - 1 :]).abs().amax(-1)[1:]
    slow = torch.tensor([slow for slow, _ in steps])
    assert slow.sum() == 6
    assert (off[slow] < 1e-5).all()
    assert (off[~slow] > 1e-4).all()


class Reads(Observer):
    """Per decode step and layer: how many units each view had, keys, values and positions of all, and the cache's."""

    def __init__(self):
        self.calls = []

    def attended(self, attended):
        if not attended.part.decode:
            return
        if attended.layer == 0:
            self.calls.append({})
        views = attended.views
        everything = attended.part.sequence.caches[attended.layer].live()
        read = [torch.cat([getattr(view, name) for view in views], 1) for name in ("keys", "values")]
        positions = torch.cat([view.positions.expand(2, -1) for view in views], 1)
        self.calls[-1][attended.layer] = ([view.units for view in views], (*read, positions), everything)


@covered(recent_mode=["sliding", "anchored"], selector=["attention", "alpha_fair", "pooled", "peaks"])
def test_what_is_read(llm_of, recent_mode, selector):
    """J4 and J9: read sets equal the reference's, are disjoint, and their keys and values are those of the cache."""
    llm, ids, record = llm_of("llama"), tokens(), Reads()
    parameters = {"selector": selector, "recent_mode": recent_mode, "budget": 5}
    policy = slowfast(BASE | OPTIONS.get(selector, {}) | parameters)
    _, state, steps = walk(llm, Plan(read=policy), ids, observer=record)
    reference, _ = expect(llm, policy, ids)
    assert len(record.calls) == len(steps) == len(ids) - PROMPT
    for step, layers in enumerate(record.calls, 1):
        for layer, (sizes, read, everything) in layers.items():
            assert everything[2].tolist() == list(range(PROMPT + step))
            for head, at in enumerate(read[2]):
                assert len(set(at.tolist())) == len(at)
                assert set(at.tolist()) == reference.reads[layer][step][head]
                assert torch.equal(read[0][head], everything[0][head, at])
                assert torch.equal(read[1][head], everything[1][head, at])
            if not reference.slow[step]:
                recent = 3 + (step % 4 if recent_mode == "anchored" else 0)
                assert sizes == [6, recent]
                assert (read[2][:, :6].diff() > 0).all()
    for layer in range(4):
        for row, heads in reference.selected[layer].items():
            assert all(len(head) == 5 and head[0] >= 1 and head[-1] <= row - 3 for head in heads)
    assert [cache.length for cache in state.caches] == [len(ids)] * 4


@covered(
    together=2, name=["llama", "gemma2"], recent_mode=["sliding", "anchored"], layer_groups=[1, 2], publish_delay=[0, 2]
)
def test_units_read_equal_the_closed_formula(llm_of, name, recent_mode, layer_groups, publish_delay):
    """Per layer and KV head: sink + budget + recent, and what came since if they are anchored; slow, all there is."""
    llm, ids = llm_of(name), tokens()
    parts = {"recent_mode": recent_mode, "layer_groups": layer_groups, "publish_delay": publish_delay}
    policy = slowfast(BASE | parts)
    _, state, steps = walk(llm, Plan(read=policy), ids)
    turn, made, current = 0, [[] for _ in range(4)], [0] * 4  # per layer: (first step that reads it, step that made it)
    for step, (slow, read) in enumerate(steps, 1):
        assert slow == (step % 4 == 0)
        turn += slow
        expected = 0
        for layer, window in enumerate(llm.decoder.shape.windows):
            units = PROMPT + step if window is None else min(window, PROMPT + step)
            current[layer] = max([current[layer], *(by for due, by in made[layer] if due <= step)])
            if slow and layer % layer_groups == turn % layer_groups:
                expected += units
                made[layer].append((step + 1 + publish_delay, step))
            else:
                recent = 3 + (step - current[layer] if recent_mode == "anchored" else 0)
                expected += 4 + min(units, recent)
        assert read == 2 * expected
    assert state.stats.slow_steps == len(steps) // 4
    assert state.stats.fast_steps == len(steps) - len(steps) // 4
    assert state.stats.units_read == sum(read for _, read in steps)
    dense = [PROMPT + step if w is None else w for step in range(1, len(steps) + 1) for w in llm.decoder.shape.windows]
    assert state.stats.units_full == 2 * sum(dense)


@pytest.mark.parametrize(
    ("parameters", "copies"),
    [
        ({}, 1),
        ({"selector": "alpha_fair"}, 1),
        ({"selector": "alpha_fair", "prior": False}, 1),
        ({"selector": "pooled"}, 1),
        ({"selector": "persist"}, 1),
        ({"publish_delay": 2}, 2),
        ({"budget": 200}, 0),
        ({"bootstrap": 30}, 1),
    ],
    ids=str,
)
def test_bytes_beside_the_cache(llm_of, parameters, copies):
    """Packed copies of keys, values and positions with the scores of what is selected, or, before,
    the queries of the prompt's last rows that waited for its last chunk, with their positions, whatever is more."""
    llm, ids = llm_of("llama"), tokens()
    policy = slowfast(BASE | {"bootstrap": 1} | parameters)
    _, state, _ = walk(llm, Plan(read=policy), ids)
    state.measure()
    shape = llm.decoder.shape
    packed = shape.kv_heads * ((1 + policy.budget) * (shape.unit_bytes + 8) + policy.budget * 4)
    waiting = max(0, policy.bootstrap - PROMPT % llm.prefill_chunk)
    queries = waiting * (shape.q_heads * shape.head_dim * 4 + 8)
    assert state.stats.aux_bytes == shape.layers * max(copies * packed, queries)
    units = shape.layers * shape.kv_heads * shape.unit_bytes * len(ids)
    assert state.stats.cache_bytes == units
    if copies * packed >= queries:
        assert state.stats.total_bytes == units + state.stats.aux_bytes
    else:  # the queries were gone before the last units came
        assert units < state.stats.total_bytes < units + state.stats.aux_bytes


def test_greedy_and_sampled_runs_are_deterministic(llm_of):
    """J11: whatever is sampled beside it; and a step fewer is needed than tokens are made."""
    llm, prompts = llm_of("llama"), [prose(count, seed) for count, seed in ((40, 1), (23, 2), (31, 3))]
    plan = Plan(read=slowfast(BASE | {"trigger": "sentence", "interval": 9, "publish_delay": 1}))
    for params in (SamplingParams(max_tokens=20), SamplingParams(max_tokens=20, temperature=1.0, seed=5, n=2)):
        together = llm.generate(prompts, params, plan=plan)
        for index, prompt in enumerate(prompts):
            alone = llm.generate([prompt], params, plan=plan)
            mine = [out for out in together if out.prompt_index == index]
            assert [out.token_ids for out in mine] == [out.token_ids for out in alone]
            for out, other in zip(mine, alone, strict=True):
                assert (out.stats.slow_steps, out.stats.units_read) == (other.stats.slow_steps, other.stats.units_read)
                assert out.stats.slow_steps + out.stats.fast_steps == len(out.token_ids) - 1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"budget": 0}, "budget=0 must be at least 1"),
        ({"budget": -3}, "budget=-3"),
        ({"budget": 1.5}, "budget"),
        ({"budget": True}, "budget"),
        ({"sink": -1}, "sink=-1 must be at least 0"),
        ({"recent": 0}, "recent=0.*recent=1 or more"),
        ({"recent": -1, "recent_mode": "anchored"}, "recent=-1"),
        ({"interval": 0}, "interval=0 must be at least 1"),
        ({"min_gap": 0}, "min_gap=0"),
        ({"trigger": "sentence", "interval": 4, "min_gap": 5}, "interval=4 is below min_gap=5.*larger interval"),
        ({"cooldown": -1}, "cooldown=-1"),
        ({"bootstrap": 0}, "bootstrap=0"),
        ({"layer_groups": 0}, "layer_groups=0"),
        ({"publish_delay": -1}, "publish_delay=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"trigger": "comma"}, "trigger='comma'"),
        ({"trigger_on": "middle"}, "trigger_on='middle'"),
        ({"recent_mode": "floating"}, "recent_mode='floating'"),
        ({"selector": "best"}, "selector='best'"),
        ({"selector": "pooled", "pool": 4}, "pool=4 must be odd"),
        ({"selector": "pooled", "pool": 0}, "pool=0"),
        ({"selector": "attention", "pool": 3}, "pool=3 changes nothing.*peaks.*pooled"),
        ({"selector": "pooled", "memory": 0.5}, "memory=0.5 changes nothing.*peaks"),
        ({"selector": "peaks", "memory": 1.5}, "memory=1.5 must be between 0 and 1"),
        ({"selector": "peaks", "memory": -0.1}, "memory=-0.1"),
        ({"selector": "peaks", "far": 1.5}, "far=1.5 must be between 0 and 1"),
        ({"selector": "pooled", "far": 0.5}, "far=0.5 changes nothing.*peaks"),
        ({"selector": "peaks", "half_life": 0}, "half_life=0"),
        ({"selector": "attention", "half_life": 8}, "half_life=8 changes nothing.*peaks"),
        ({"selector": "pooled", "prior": False}, "prior=False changes nothing.*alpha_fair"),
        ({"selector": "attention", "suppression": False}, "suppression=False changes nothing.*alpha_fair"),
        ({"selector": "persist", "cross_head": False}, "cross_head=False changes nothing.*alpha_fair"),
        ({"selector": "pooled", "fusion": "reverse"}, "fusion='reverse'"),
        ({"selector": "alpha_fair", "prior": False, "fusion": "reverse"}, "fusion='reverse'"),
        ({"selector": "alpha_fair", "fusion": "sideways"}, "fusion='sideways'"),
        ({"budgt": 3}, "no parameter 'budgt'"),
    ],
    ids=str,
)
def test_bad_parameters(parameters, message):
    values = {key: value for key, value in BASE.items() if key not in (*parameters, "min_gap")} | parameters
    text = ", ".join(f"{key}={value!r}" for key, value in values.items())
    with pytest.raises(PlanError, match=f"(?s)slowfast.*{message}"):
        Plan.parse(f"slowfast({text})")


def test_more_groups_than_layers(llm_of):
    with pytest.raises(PlanError, match="layer_groups=5 is more than the model's 4 layers"):
        llm_of("llama").logits(tokens(), decode_from=PROMPT, plan=Plan(read=slowfast(BASE | {"layer_groups": 5})))


def test_intervals_below_the_gap_matter_to_sentences_only():
    assert SlowFast(trigger="periodic", interval=2).interval < SlowFast().min_gap


def test_where_all_units_stand_before_those_who_vote(llm_of):
    """An anchor is all that a layer holds of the prompt: it is selected, and read."""
    speed = "speed(self_only=True, decode_from='last:1')"
    slowfast = "slowfast(sink=0, budget=1, recent=0, recent_mode='anchored', trigger='periodic', interval=3)"
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    alone, both = llm_of("llama").generate([tokens()] * 2, params, plan=[speed, f"{speed} + {slowfast}"])
    assert both.stats.new_tokens == 8
    assert both.token_ids[:2] == alone.token_ids[:2]
