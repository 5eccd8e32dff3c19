"""What decode steps read, in ragged batches and forks, and over what other policies compute and keep."""

import random

import pytest
import torch

import slowfast_reference as reference
from covering import covered, covering, marked
from driving import advance, decode, logits_of, prefill
from models import small_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM, Plan
from winnow.engine.services import admit
from winnow.errors import PlanError
from winnow.parameters import that_matter
from winnow.policies.read.slowfast import SlowFast
from winnow.runtime.heads import HeadsConfig, RetainingHeads
from winnow.runtime.observer import Observer

PROMPT = 35
LOCRET = "locret(budget=14, chunk=6, stabilizers=3, local=4"
# Plans that read is composed with; what they hold differs between tokens, heads and layers.
OTHERS = {
    "locret": LOCRET + ")",
    "locret, original": LOCRET + ", positions='original')",
    "locret, evicting at the end": "locret(budget=14, chunk=6, stabilizers=3, local=0)",
    "locret, evicting in decode": LOCRET + ", decode_chunk=5)",
    "snapkv": "snapkv(budget=14, chunk=6, window=4, kernel=3, local=4)",
    "h2o": "h2o(budget=14, chunk=6, recent=4, local=4, decode_chunk=None)",
    "streaming": "streaming(sink=3, recent=20)",
    "streaming, many sinks": "streaming(sink=12, recent=9)",
    "streaming, no sinks": "streaming(sink=0, recent=16)",
    "speed": "speed(cutoff=2, decode_from='last:3')",
    "speed, long header": "speed(cutoff=2, decode_from='last:12')",
    "pop": "pop(cutoff=2)",
    "swiftkv": "swiftkv(cutoff=2)",
    "static_prune": "static_prune(keep=0.5, layers=2)",
    "random_drop": "random_drop(keep=0.5)",
    "lazyllm": "lazyllm(layers=[1, 3], keep=[0.5, 0.6])",
    "lazyllm, causal": "lazyllm(layers=[1, 3], keep=[0.7, 0.7], revive='causal')",
    "lazyllm, never": "lazyllm(layers=[1, 3], keep=[0.5, 0.6], revive='never')",
}
REVIVING = ("lazyllm", "lazyllm, causal")
FEW = {"sink": 1, "budget": 3, "recent": 3, "bootstrap": 4, "trigger": "periodic", "interval": 4}


def plan_of(other=None, **parameters):
    """The parameters, but for those with which no token can be revived."""
    if other in REVIVING:
        parameters = {key: value for key, value in parameters.items() if key not in ("publish_delay", "layer_groups")}
    text = ", ".join(
        f"{key}={value!r}" for key, value in that_matter(SlowFast, SlowFast.matters, FEW | parameters).items()
    )
    return Plan.parse(f"{f'{OTHERS[other]} + ' if other else ''}slowfast({text})")


@pytest.fixture(scope="module")
def llm_of():
    made = {}

    def get(name, chunk=10):
        if name not in made:
            llm = made[name] = LLM(small_model(name), tokenizer=byte_tokenizer())
            config = HeadsConfig.of(llm.model, llm.decoder.shape, width=8)
            llm.decoder.default_heads = RetainingHeads.random(config, seed=1)
        made[name].prefill_chunk = chunk
        return made[name]

    return get


def tokens(count=55, seed=7):
    """Random, with ends of sentences."""
    source = random.Random(seed)
    return [source.choice([49, 66, 35, 13]) if source.random() < 0.2 else source.randrange(3, 97) for _ in range(count)]


def start(llm, plan, ids, observer=None):
    state, seen = admit(llm.decoder, llm.tokenizer, plan, ids[:PROMPT], len(ids) - PROMPT, llm.prefill_chunk)
    state.observer = observer
    return state, prefill(llm.decoder, state, seen, llm.prefill_chunk)


def assert_same(got, expected, atol=1e-5):
    assert not expected.isnan().any()
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


VARIANTS = {
    "plain": {"selector": "attention"},
    "fair": {"selector": "alpha_fair", "recent_mode": "anchored", "bootstrap": 12},
    "peaks": {"selector": "peaks", "publish_delay": 2, "pool": 3, "interval": 3, "bootstrap": 7},
    "groups": {"selector": "pooled", "pool": 3, "layer_groups": 2},
    "sentences": {"selector": "persist", "trigger": "sentence", "interval": 9, "min_gap": 1, "sink": 0},
}


ALONE = [("llama", None, variant) for variant in VARIANTS]
BESIDE = [(name, other, variant) for name, variant in (("llama", "fair"), ("llama", "peaks"), ("gemma2", "plain"))
          for other in OTHERS]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "other", "variant"),
    marked([*ALONE, ("gemma2", None, "plain"), *BESIDE], [*ALONE, *covering(BESIDE, together=1)]),
)
@pytest.mark.filterwarnings("ignore:lazyllm keeps the units")
def test_the_chunk_size_changes_nothing(llm_of, name, other, variant):
    plan, ids = plan_of(other, **VARIANTS[variant]), tokens(PROMPT + 8)
    expected = llm_of(name, 10).logits(ids, decode_from=PROMPT, plan=plan)
    base = Plan() if other is None else OTHERS[other]
    assert (expected - llm_of(name).logits(ids, decode_from=PROMPT, plan=base)).abs().max() > 1e-3
    for chunk in (1, 64):
        assert_same(llm_of(name, chunk).logits(ids, decode_from=PROMPT, plan=plan), expected)


PLANS = [
    plan_of(**VARIANTS["sentences"]),
    plan_of(trigger="random", interval=3, seed=4, selector="pooled", pool=5),
    plan_of("locret", selector="alpha_fair", interval=5),
    Plan(),
    plan_of("lazyllm", selector="attention", interval=3),
    plan_of(trigger="none", recent_mode="anchored", recent=0, selector="peaks"),
    plan_of("streaming", publish_delay=1, selector="attention", interval=2),
    Plan.parse(OTHERS["lazyllm"]),
]


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
@pytest.mark.filterwarnings("ignore:lazyllm keeps the units")
def test_slow_and_fast_sequences_share_steps(llm_of, name):
    """Each of eight plans, in whatever order they arrive and decode, and beside prompts that are read in chunks."""
    llm = llm_of(name)
    texts = [tokens(seed=seed) for seed in range(len(PLANS))]
    expected = [llm.logits(ids, decode_from=PROMPT, plan=plan) for plan, ids in zip(PLANS, texts, strict=True)]
    begun = [start(llm, plan, ids) for plan, ids in zip(PLANS, texts, strict=True)]
    rows = [[logits] for _, logits in begun]
    mate, seen = admit(llm.decoder, llm.tokenizer, PLANS[0], texts[1], 20, llm.prefill_chunk)
    source = random.Random(1)
    slow = set()
    for step in range(len(texts[0]) - PROMPT):
        order = source.sample(range(len(PLANS)), len(PLANS))
        batch = [(begun[i][0], [texts[i][PROMPT + step]]) for i in order]
        batch.insert(source.randrange(len(batch)), (mate, seen[2 * step : 2 * step + 2]))
        hidden = advance(llm.decoder, batch, decode=[state is not mate for state, _ in batch])
        for (state, _), each in zip(batch, hidden, strict=True):
            if state is not mate:
                rows[[s for s, _ in begun].index(state)].append(logits_of(llm.decoder, each[-1:])[0])
        slow.add(tuple(state.reader.slow for state, _ in begun))
    for got, wanted in zip(rows, expected, strict=True):
        assert_same(torch.stack(got), wanted)
    assert len(slow) > 5


@covered(other=[None, "locret", "lazyllm", "streaming"], variant=["peaks", "sentences"])
def test_forks_are_independent(llm_of, other, variant):
    """A fork at every other step, also while a selection waits to be read, that then feeds other tokens."""
    llm, ids, plan = llm_of("llama"), tokens(), plan_of(other, **VARIANTS[variant])
    expected = llm.logits(ids, decode_from=PROMPT, plan=plan)
    state, logits = start(llm, plan, ids)
    rows = [logits]
    for step, token in enumerate(ids[PROMPT:]):
        twin = state.fork()
        for away in ids[step : step + 3 * (step % 2)]:
            decode(llm.decoder, [(twin, away)])
        rows.append(decode(llm.decoder, [(state, token)])[0])
    assert_same(torch.stack(rows), expected)
    for at in (1, 7):
        state, _ = start(llm, plan, ids)
        for token in ids[PROMPT : PROMPT + at]:
            decode(llm.decoder, [(state, token)])
        state = state.fork()
        rows = [decode(llm.decoder, [(state, token)])[0] for token in ids[PROMPT + at :]]
        assert_same(torch.stack(rows), expected[at + 1 :])


@torch.inference_mode()
def poison(state):
    """Memory of no live unit; nobody may look at it."""
    for cache in state.caches:
        for memory in (cache.slab.keys, cache.slab.values, *([] if cache.scores is None else [cache.scores])):
            memory[:, cache.head : cache.start] = torch.nan
            memory[:, cache.stop :] = torch.nan


@covered(
    other=[None, "locret", "locret, evicting in decode", "streaming", "speed", "lazyllm"], name=["llama", "gemma2"]
)
@pytest.mark.filterwarnings("ignore:lazyllm keeps the units")
def test_dead_memory_changes_nothing(llm_of, name, other):
    llm, ids, plan = llm_of(name), tokens(), plan_of(other, selector="alpha_fair", publish_delay=1)
    expected = llm.logits(ids, decode_from=PROMPT, plan=plan)
    state, seen = admit(llm.decoder, llm.tokenizer, plan, ids[:PROMPT], len(ids) - PROMPT, 7)
    for begin in range(0, len(seen), 7):
        poison(state)
        [hidden] = advance(llm.decoder, [(state, seen[begin : begin + 7])], decode=False)
    rows = [logits_of(llm.decoder, hidden[-1:])[0]]
    for token in ids[PROMPT:]:
        poison(state)
        rows.append(decode(llm.decoder, [(state, token)])[0])
    assert_same(torch.stack(rows), expected)


class Follow(Observer):
    """Says from what slow rows attended to, and from what the caches hold, what fast rows have to read, and looks.

    sees: (position, row) -> whether a keep policy lets a row see a unit at all. always: the units that are read in any
    case and not chosen among. pruned: layers below this one evict units after the prompt, and select anew. One row
    selects: of the prompt, the last.
    """

    def __init__(self, policy, sees=lambda position, row: True, always=lambda position: False, pruned=0):
        self.policy, self.sees, self.always, self.pruned = policy, sees, always, pruned
        self.total = policy.sink + policy.budget + policy.recent
        self.chosen = {}  # layer -> per KV head: positions
        self.checked = self.forgotten = 0
        self.fast_layers = set()

    def compressed(self, sequence):
        self.chosen.clear()
        self.forgotten += 1

    @torch.inference_mode()
    def attended(self, attended):
        part = attended.part
        row, slow = int(part.positions[-1]), part.sequence.reader.slow
        if row != part.known - 1 or row < part.sequence.prompt - 1:
            return
        known = self.chosen.get(attended.layer)
        if part.decode and not self.chosen:
            assert slow or part.sequence.stats.units_read == 0 or self.waits(attended)
        if part.decode and not slow and known is not None:
            self.check(attended, known, row)
        else:
            self.select(attended, row)

    def waits(self, attended):
        """Whether the layers below hold too little to select, in a step that began with nothing selected."""
        return attended.layer > 0

    def read(self, attended, row):
        """Per KV head {position: (key, value)} of what the row really attends to."""
        heads, window = attended.views[0].keys.shape[0], attended.part.sequence.shape.windows[attended.layer]
        found = [{} for _ in range(heads)]
        for view in attended.views:
            positions, order = view.positions.expand(heads, -1), view.order.expand(heads, -1)
            for head in range(heads):
                for place, (position, at) in enumerate(
                    zip(positions[head].tolist(), order[head].tolist(), strict=True)
                ):
                    if at <= row and (window is None or row - position < window):
                        assert position not in found[head], "a unit is read twice"
                        found[head][position] = (view.keys[head, place], view.values[head, place])
        return found

    def select(self, attended, row):
        found = self.read(attended, row)
        weights, positions = attended.weights()
        group = len(weights) // len(found)
        chosen = []
        for head, units in enumerate(found):
            mine = sorted(p for p in units if not self.always(p) and self.sees(p, row))
            if len(mine) < self.total:
                return
            at = positions.expand(len(found), -1)[head] if positions.dim() == 1 else positions[head]
            place = {p: i for i, p in enumerate(at.tolist()) if p in units}
            candidates = mine[self.policy.sink : len(mine) - self.policy.recent]
            index = torch.tensor([place[p] for p in candidates])
            logits = weights[head * group : (head + 1) * group, index].log()
            norms = torch.stack([units[p][0].norm() for p in candidates])
            chosen.append((mine[: self.policy.sink], candidates, logits, norms))
        table = reference.scores(
            torch.stack([each[2] for each in chosen]), torch.stack([each[3] for each in chosen]), None,
            self.policy.selector, **({"pool": self.policy.pool} if self.policy.selector == "pooled" else {}),
        )  # fmt: skip
        if not attended.part.decode and attended.layer < self.pruned:
            return
        self.chosen[attended.layer] = [
            {*first, *(candidates[i] for i in reference.best(row_of, self.policy.budget))}
            for (first, candidates, *_), row_of in zip(chosen, table.tolist(), strict=True)
        ]

    def check(self, attended, chosen, row):
        cache, window = (
            attended.part.sequence.caches[attended.layer],
            attended.part.sequence.shape.windows[attended.layer],
        )
        keys, values, positions = cache.live()
        for head, units in enumerate(self.read(attended, row)):
            at = positions.expand(len(chosen), -1)[head].tolist()
            held = {p: i for i, p in enumerate(at) if self.sees(p, row) and (window is None or row - p < window)}
            recent = sorted(p for p in held if not self.always(p))[-self.policy.recent :]
            wanted = (chosen[head] & held.keys()) | set(recent) | {p for p in held if self.always(p)}
            assert units.keys() == wanted
            for position, (key, value) in units.items():
                assert torch.equal(value, values[head, held[position]])
                assert not cache.rotated or torch.equal(key, keys[head, held[position]])
        self.checked += 1
        self.fast_layers.add(attended.layer)


SEES = {
    "streaming": (lambda p, row: p < 3 or row - p < 20, lambda p: p < 3),
    "streaming, many sinks": (lambda p, row: p < 12 or row - p < 9, lambda p: p < 12),
    "streaming, no sinks": (lambda p, row: row - p < 16, lambda p: False),
    "static_prune": (lambda p, row: True, lambda p: False, 2),
}


@covered(selector=["alpha_fair", "pooled"], other=[None, *OTHERS])
def test_what_fast_steps_read_over_other_policies(llm_of, other, selector):
    """First, selected and recent of the units that a layer holds for a head, whatever their positions."""
    plan = plan_of(other, bootstrap=1, selector=selector, **{"pool": 3} if selector == "pooled" else {})
    follow = Follow(plan.read, *SEES.get(other, ()))
    llm, ids = llm_of("llama"), tokens()
    state, _ = start(llm, plan, ids, follow)
    for token in ids[PROMPT:]:
        decode(llm.decoder, [(state, token)])
    assert follow.fast_layers == {0, 1, 2, 3}
    assert follow.checked >= 20
    assert state.stats.fast_steps > 5
    if other == "locret, evicting in decode":
        assert follow.forgotten >= 4


@covered(
    other=[None, "streaming, no sinks", "static_prune", "lazyllm, never", "lazyllm", "speed"],
    name=["mistral", "gemma2", "gpt_oss"],
)
@pytest.mark.filterwarnings("ignore:lazyllm keeps the units")
def test_what_fast_steps_read_in_windows(llm_of, name, other):
    """Units that have left a window are not chosen among; what was chosen and leaves it is not read any more."""
    plan = plan_of(other, bootstrap=1, selector="attention")
    follow = Follow(plan.read, *SEES.get(other, ()))
    llm, ids = llm_of(name), tokens()
    state, _ = start(llm, plan, ids, follow)
    for token in ids[PROMPT:]:
        decode(llm.decoder, [(state, token)])
    assert follow.checked >= 20


class Held(Observer):
    """Looks whether all that decode rows read is held, but for what has the place of nobody."""

    def attended(self, attended):
        if not attended.part.decode:
            return
        keys, values, positions = attended.part.sequence.caches[attended.layer].live()
        for head in range(len(keys)):
            place = {p: i for i, p in enumerate(positions.expand(len(keys), -1)[head].tolist())}
            for view in attended.views:
                order = view.order.expand(len(keys), -1)[head]
                for unit in (order < 2**62).nonzero().flatten().tolist():
                    at = place[int(order[unit])]
                    assert torch.equal(view.keys[head, unit], keys[head, at])
                    assert torch.equal(view.values[head, unit], values[head, at])


@pytest.mark.parametrize("positions", ["compact", "original"])
def test_what_was_selected_is_forgotten_when_units_are_evicted(llm_of, positions):
    """Also what waits to be read; and a step that finds nothing selected is slow."""
    llm, ids = llm_of("llama"), tokens()
    locret = f"locret(budget=14, chunk=6, stabilizers=3, local=4, decode_chunk=5, positions={positions!r})"
    plan = Plan.parse(
        f"{locret} + slowfast(budget=3, sink=1, recent=3, trigger='periodic', interval=4, publish_delay=2)"
    )
    state, _ = start(llm, plan, ids, Held() if positions == "original" else None)
    slow = []
    for token in ids[PROMPT:]:
        decode(llm.decoder, [(state, token)])
        slow.append(state.reader.slow)
    # Every fourth step, and the one after units have been evicted: after 5, 10 and 15 steps.
    assert [step for step, each in enumerate(slow, 1) if each] == [4, 6, 8, 11, 12, 16, 20]


ALL = {
    "locret": 18, "locret, original": 18, "snapkv": 18, "h2o": 18, "streaming": 20, "streaming, no sinks": 16,
    "speed": PROMPT, "pop": PROMPT, "swiftkv": PROMPT, "static_prune": 19, "random_drop": 18,
}  # fmt: skip


@covered(other=ALL, name=["llama", "llama-yarn"])
def test_reading_all_over_other_policies_changes_nothing(llm_of, name, other):
    """J2, over each of them: what is packed stands for what is kept, at its rope positions."""
    llm, ids = llm_of(name), tokens()
    plan = plan_of(other, budget=ALL[other] - 4, recent_mode="anchored", trigger="none", selector="attention")
    state, logits = start(llm, plan, ids)
    assert max(cache.length for cache in state.caches) >= ALL[other] - 1  # the first step may be the one that selects
    rows = [logits, *(decode(llm.decoder, [(state, token)])[0] for token in ids[PROMPT:])]
    assert_same(torch.stack(rows), llm.logits(ids, decode_from=PROMPT, plan=OTHERS[other]))
    assert state.stats.fast_steps >= len(ids) - PROMPT - 1


class Rows(Observer):
    """Rows that entered each layer, per decode step."""

    def __init__(self):
        self.rows = []

    def entered(self, layer, segment, hidden):
        if segment.decode:
            self.rows += [[]] if layer == 0 else []
            self.rows[-1].append(len(hidden))


@pytest.mark.parametrize("other", REVIVING)
def test_tokens_are_revived_on_slow_steps_only(llm_of, monkeypatch, other):
    """A fast step computes one row per layer and asks for no choice, since there is no full attention to choose by."""
    llm, ids, record = llm_of("llama"), tokens(), Rows()
    plan, asked = plan_of(other, selector="attention"), []
    choose = type(plan.compute).choose
    monkeypatch.setattr(
        type(plan.compute), "choose",
        lambda self, gate, entrance: (asked.append(entrance.decode), choose(self, gate, entrance))[1],
    )  # fmt: skip
    state, _ = start(llm, plan, ids, record)
    asked.clear()
    for token in ids[PROMPT:]:
        before, revived = len(asked), state.stats.revived_rows
        decode(llm.decoder, [(state, token)])
        if state.reader.slow:
            assert len(asked) == before + 2
            assert sum(record.rows[-1][:4]) == 4 + state.stats.revived_rows - revived
        else:
            assert (len(asked), state.stats.revived_rows) == (before, revived)
            assert record.rows[-1] == [1] * 5
    assert state.stats.revived_rows > 0
    assert state.stats.fast_steps == 15


def test_lazy_slow_steps_equal_lazyllm(llm_of):
    """With every step slow, LazyLLM revives as it does alone."""
    llm, ids = llm_of("llama"), tokens()
    plan = plan_of("lazyllm", interval=1)
    assert_same(
        llm.logits(ids, decode_from=PROMPT, plan=plan), llm.logits(ids, decode_from=PROMPT, plan=OTHERS["lazyllm"])
    )


def test_few_units_are_all_read(llm_of):
    """Above SPEED's cutoff a layer holds little, and reads it all until it has sink + budget + recent units."""
    llm, ids = llm_of("llama"), tokens()
    plan = plan_of("speed", budget=12, trigger="none", selector="attention")  # 16 units
    state, _ = start(llm, plan, ids)
    upper = state.caches[3].length
    assert 0 < upper < 10
    for step, token in enumerate(ids[PROMPT:], 1):
        before = state.stats.units_read
        decode(llm.decoder, [(state, token)])
        assert state.stats.units_read - before == 2 * (2 * 16 + 2 * min(upper + step, 16))
        assert not state.reader.slow


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("h2o(budget=14, chunk=6, recent=4, local=4, decode_chunk=1)", "h2o.*decode_chunk=None"),
        ("h2o(budget=14, decode_chunk=4)", "h2o.*decode_chunk=None"),
    ],
)
def test_what_needs_every_attention_is_refused(llm_of, other, message):
    plan = Plan.parse(f"{other} + slowfast(trigger='periodic')")
    with pytest.raises(PlanError, match=message):
        llm_of("llama").generate([tokens()], plan=plan)


@pytest.mark.parametrize("other", REVIVING)
@pytest.mark.parametrize("parameter", ["layer_groups=2", "publish_delay=1"])
def test_ranking_needs_steps_that_read_all(llm_of, other, parameter):
    plan = Plan.parse(f"{OTHERS[other]} + slowfast(trigger='periodic', {parameter})")
    with pytest.raises(PlanError, match=f"lazyllm ranks tokens by full attention.*{parameter}"):
        llm_of("llama").generate([tokens()], plan=plan)
