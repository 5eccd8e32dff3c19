"""InfLLM against its formulas, token by token, over stock layers whose queries and keys come unrotated."""

import itertools
import random

import pytest
import torch
from transformers import AttentionInterface

import models
from covering import covered
from models import small_model
from winnow import LLM, Plan, SamplingParams
from winnow.engine.bound import most_held
from winnow.errors import CapacityError, PlanError
from winnow.policies.read.infllm import InfLLM

PROMPT, STEPS = 43, 14
SETTINGS = (
    {"recent": 6, "sink": 2, "block": 4, "top": 2, "representatives": 2, "rows": 4},
    {"recent": 9, "sink": 0, "block": 3, "top": 1, "representatives": 3, "rows": 7},
    {"recent": 5, "sink": 7, "block": 5, "top": 3, "representatives": 1, "rows": 11},  # groups longer than the window
    {"recent": 1, "sink": 1, "block": 1, "top": 4, "representatives": 1, "rows": 1},
    {"recent": 20, "sink": 50, "block": 2, "top": 1, "representatives": 1, "rows": 16},  # all that is far is a sink
)


@pytest.fixture(scope="module")
def text():
    source = random.Random(5)
    return [source.randrange(3, 97) for _ in range(PROMPT + STEPS)]


class Restated:
    """One layer of the method: lists of positions, as its paper and code have them. rotate: (x [.., d], position)."""

    def __init__(self, policy, q, k, v, rotate, logit, sinks):
        self.policy, self.q, self.k, self.v, self.rotate, self.logit, self.extra = policy, q, k, v, rotate, logit, sinks
        self.sinks, self.blocks, self.vectors, self.remainder = [], [], [], []
        self.scores = torch.zeros(len(q), q.shape[1])

    def rows(self, start, stop):
        """Outputs [rows, q_heads, d] of some rows that choose together, and how many units each of them reads."""
        policy = self.policy
        self.remainder += range(start, stop)
        mean = self.rotate(self.q[:, start:stop], policy.recent - 1).mean(1)
        best = sorted(range(len(self.blocks)), key=lambda b: -float((mean * self.vectors[b]).sum()))[: policy.top]
        out, read = [], []
        for row in range(start, stop):
            near = [p for p in range(row + 1) if row - p < policy.recent]
            left = [p for p in self.remainder if row - p >= policy.recent]
            far = [p for b in sorted(best) for p in self.blocks[b]] + self.sinks + left
            query = self.q[:, row]
            close = [(self.rotate(query, row) * self.rotate(self.k[:, p], p)).sum(-1) for p in near]
            distant = [(self.rotate(query, policy.recent - 1) * self.rotate(self.k[:, p], 0)).sum(-1) for p in far]
            logits = self.logit(torch.stack(close + distant, -1))
            extra = logits[:, :0] if self.extra is None else self.extra[:, None]
            weights = torch.cat((logits, extra), 1).softmax(-1)[:, : logits.shape[1]]
            out.append((weights[..., None] * self.v[:, near + far]).sum(1))
            self.scores[:, near] += weights[:, : len(near)]
            read.append(len(near) + len(far))
            assert len(set(near + far)) == len(near + far)
        self._pass_on()
        return torch.stack(out), read

    def _pass_on(self):
        policy = self.policy
        while len(self.remainder) > policy.recent and len(self.sinks) < policy.sink:
            self.sinks.append(self.remainder.pop(0))
        while len(self.remainder) - policy.block >= policy.recent:
            block, self.remainder = self.remainder[: policy.block], self.remainder[policy.block :]
            vector = []
            for head, scores in enumerate(self.scores):
                chosen = sorted(block, key=lambda p: -float(scores[p]))[: policy.representatives]
                vector.append(torch.stack([self.rotate(self.k[head, p], 0) for p in chosen]).mean(0))
            self.blocks.append(block)
            self.vectors.append(torch.stack(vector))


@torch.inference_mode()
def restated(model, ids, prompt, windows, rotations, policy):
    """Logits [tokens, vocab], and per layer without a window how many units each row reads."""
    rotary, read = model.model.rotary_emb, {}
    frequencies, scaling = rotary.original_inv_freq, rotary.attention_scaling
    tables = rotary.forward

    def nowhere(*given, **named):
        cos, sin = tables(*given, **named)
        return torch.ones_like(cos), torch.zeros_like(sin)

    rotary.forward = nowhere

    def rotate(x, position):
        angles = torch.cat((frequencies, frequencies)) * position
        first, second = x.chunk(2, -1)
        return scaling * (x * angles.cos() + torch.cat((-second, first), -1) * angles.sin())

    def attention(module, q, k, v, mask, *, scaling, softcap=None, s_aux=None, **others):
        layer, heads = module.layer_idx, q.shape[1]
        q, k, v = (each[0].repeat_interleave(heads // each.shape[1], 0) for each in (q, k, v))

        def logit(x):
            return x * scaling if softcap is None else softcap * (x * scaling / softcap).tanh()

        turn = rotate if rotations[layer] != "not rotated" else lambda x, position: x
        if windows[layer] is not None:  # attention in a window, and nothing else
            near = InfLLM(recent=windows[layer], sink=0, block=1, top=1, representatives=1, rows=1)
            whole = Restated(near, q, k, v, turn, logit, s_aux)
            whole._pass_on = whole.remainder.clear
            return torch.cat([whole.rows(at, at + 1)[0] for at in range(len(ids))])[None], None
        method = Restated(policy, q, k, v, turn, logit, s_aux)
        ends = [*range(0, prompt, policy.rows), *range(prompt, len(ids) + 1)]
        found = [method.rows(start, stop) for start, stop in itertools.pairwise(ends)]
        read[layer] = [count for _, counts in found for count in counts]
        return torch.cat([out for out, _ in found])[None], None

    AttentionInterface.register("infllm", attention)
    model.config._attn_implementation = "infllm"
    return model(torch.tensor([ids]), use_cache=False).logits[0].float(), read


def assert_equals_formulas(name, policy, ids, prompt=PROMPT):
    """Of a small model logits after the prompt and every token that follows, units and pairs that are read; returns the
    sequence."""
    llm = llm_of(name)
    shape = llm.decoder.shape
    expected, read = restated(small_model(name), ids, prompt, shape.windows, shape.rotations, policy)
    rows, counts, state = driven(llm, Plan(read=policy), ids, prompt)
    torch.testing.assert_close(rows, expected[prompt - 1 :], rtol=0, atol=1e-5)
    in_windows = [w for w in shape.windows if w is not None]
    for step, count in enumerate(counts, prompt):
        of_windows = sum(min(step + 1, window) for window in in_windows)
        assert count == shape.kv_heads * (sum(each[step] for each in read.values()) + of_windows)
    assert state.stats.pairs_read == shape.q_heads * sum(sum(each[:prompt]) for each in read.values())
    assert state.stats.pairs_full == shape.q_heads * len(read) * prompt * (prompt + 1) // 2
    for each in read.values():
        assert each == [in_closed_form(policy, row, prompt) for row in range(len(ids))]
    return state


def in_closed_form(policy, row, prompt):
    """Units per head that a row reads."""
    begun = row // policy.rows * policy.rows if row < prompt else row
    blocks = max(0, begun - policy.recent - policy.sink) // policy.block
    return row + 1 - max(0, blocks - policy.top) * policy.block


def driven(llm, plan, ids, prompt):
    """Logits after the prompt and each other token, units read by each step, the sequence."""
    session = llm.session(plan=plan, max_tokens=len(ids) - prompt + 1)
    rows, counts = [session.feed(ids[:prompt])], []
    for token in ids[prompt:]:
        before = session.stats.units_read
        rows.append(session.feed([token]))
        counts.append(session.stats.units_read - before)
    return torch.cat(rows), counts, session.state


def llm_of(name="llama", chunk=10):
    return LLM(small_model(name), prefill_chunk=chunk)


@covered(
    settings=SETTINGS,
    name=["llama", "llama-9-3", "llama-8-8", "llama-yarn", "smollm3", "gemma2", "gpt_oss", "llama-8-4"],
    together=1,
)
def test_equals_the_formulas(name, settings, text):
    assert_equals_formulas(name, InfLLM(**settings), text)


def test_what_fits_into_the_window_is_full_attention(text):
    llm = llm_of()
    policy = InfLLM(recent=len(text), sink=2, block=4, top=1, representatives=2, rows=4)
    got, _, state = driven(llm, Plan(read=policy), text, PROMPT)
    torch.testing.assert_close(got, llm.logits(text)[PROMPT - 1 :], rtol=0, atol=1e-5)
    assert (state.stats.units_read, state.stats.pairs_read) == (state.stats.units_full, state.stats.pairs_full)


@pytest.fixture
def short(monkeypatch):
    """A model of 16 positions, far fewer than the text has."""
    monkeypatch.setitem(models.SMALL, "max_position_embeddings", 16)
    return llm_of()


def test_a_text_longer_than_the_model_has_positions(short, text):
    policy = InfLLM(recent=12, sink=2, block=4, top=2, representatives=2, rows=8)
    assert_equals_formulas("llama", policy, text)
    plan = Plan(read=policy)
    [out] = short.generate([text], SamplingParams(max_tokens=9, ignore_eos=True), plan=plan)
    assert len(out.token_ids) == 9
    assert plan.room(short.decoder.shape, 100) is None
    for other in ("full", "infllm(recent=17, sink=2, block=4, top=2, representatives=2)", "quest(page=2, budget=4)"):
        with pytest.raises(CapacityError, match="57 tokens, more than the model's 16 positions"):
            short.generate([text], SamplingParams(max_tokens=1), plan=other)


def test_frequencies_are_those_of_the_positions_that_are_used(text):
    """Dynamic NTK chooses by length: the window's."""
    policy = InfLLM(recent=12, sink=2, block=4, top=2, representatives=2, rows=8)
    assert_equals_formulas("llama-dynamic", policy, text)


@covered(settings=SETTINGS, store=["plain", "mapped"], together=1)
def test_bytes_in_closed_form(settings, store, text):
    """A vector for every block, and scores of the units behind them; of all units the store says what is in memory."""
    llm, policy = llm_of(), InfLLM(**settings)
    plan = Plan.parse(f"{Plan(read=policy)} + {store}" if store == "mapped" else str(Plan(read=policy)))
    _, _, state = driven(llm, plan, text, PROMPT)
    state.measure()
    shape, last, grows = llm.decoder.shape, len(text) - 1, min(policy.rows, policy.block)
    scored = -(-max(0, min(len(text) - policy.sink, policy.recent + policy.block - 1 + policy.rows)) // grows)
    blocks = max(0, last - policy.recent - policy.sink) // policy.block
    each = scored * grows + blocks * shape.head_dim
    assert state.stats.aux_bytes == 4 * shape.layers * shape.q_heads * each
    units, beside = most_held(plan, shape, PROMPT, len(text) - PROMPT, llm.prefill_chunk)
    assert state.stats.aux_bytes <= beside
    assert state.stats.total_bytes <= units + beside


def test_rows_that_are_more_than_the_text_take_no_memory():
    shape = llm_of().decoder.shape
    few, many = (
        InfLLM(**SETTINGS[0] | {"rows": rows}).bound(shape, PROMPT, STEPS) for rows in (PROMPT + STEPS, 10**12)
    )
    assert many == few < 4 * shape.layers * shape.q_heads * (PROMPT + STEPS) * (1 + shape.head_dim)


def test_units_in_files_are_read_the_same(text):
    """And held in a part of memory that all of them do not fit into."""
    llm, policy = llm_of("llama-9-3"), InfLLM(**SETTINGS[0])
    plain, counts, _ = driven(llm, Plan(read=policy), text, PROMPT)
    mapped, same, state = driven(llm, Plan.parse(f"{Plan(read=policy)} + mapped(resident_mib=1)"), text, PROMPT)
    assert torch.equal(plain, mapped)
    assert counts == same
    assert state.stats.disk_bytes > 0


def test_keys_are_turned_once_where_they_lie(text):
    """What has left the window of a row that has been computed stands at rope position 0, and the others do not."""
    llm, policy = llm_of(), InfLLM(**SETTINGS[0])
    _, _, state = driven(llm, Plan(read=policy), text, PROMPT)
    _, _, full = driven(llm, Plan(), text, PROMPT)
    left = len(text) - policy.recent
    mine, its = (each.caches[0].slab.run(0, len(text)).keys for each in (state, full))
    assert state.caches[0].near == left
    torch.testing.assert_close(mine[:, left:], its[:, left:])
    rotate = llm.decoder.rotary.rotate
    cos, sin = llm.decoder.rotary.tables(state.frequencies, torch.arange(left))[None]
    torch.testing.assert_close(rotate(mine[None, :, :left], (cos, sin))[0], its[:, :left], rtol=0, atol=1e-5)


def test_forks_turn_keys_of_their_own(text):
    llm, policy = llm_of(), InfLLM(**SETTINGS[0])
    expected, _, _ = driven(llm, Plan(read=policy), text, PROMPT)
    session = llm.session(plan=Plan(read=policy), max_tokens=STEPS + 1)
    session.feed(text[:PROMPT])
    twin = session.fork()
    for each in (twin, session):
        torch.testing.assert_close(each.feed(text[PROMPT:]), expected[1:], rtol=0, atol=1e-5)
    with pytest.raises(PlanError, match="is not known any more"):
        session.fork(at=20)


def test_units_that_came_without_rows(text):
    """Benchmarks fill a cache: no unit has a score, and steps go on."""
    llm = llm_of()
    with llm.session(plan=Plan(read=InfLLM(**SETTINGS[0])), max_tokens=4) as session:
        session.fill(*torch.randn(2, 2, 40, 16))
        assert session.feed(text[:3]).isfinite().all()


@pytest.mark.parametrize(
    "other",
    [
        "streaming(sink=2, recent=8)",
        "locret(budget=9, chunk=6, local=4)",
        "speed(cutoff=2)",
        "xattention(threshold=0.5, stride=2, block=4)",
        "quantized(bits=4, group=16)",
    ],
)
def test_what_it_cannot_be_joined_with(other):
    with pytest.raises(PlanError, match=r"infllm turns the keys back of all that has left its window.*; use one of"):
        Plan.parse(f"{Plan(read=InfLLM(**SETTINGS[0]))} + {other}").validate(llm_of().decoder.shape)


def test_a_block_has_as_many_units_as_stand_for_it():
    with pytest.raises(PlanError, match="representatives=5 are more than the units of a block, block=4; use at most"):
        InfLLM(block=4, representatives=5)
