"""Sequences that have ended and are retained: who goes first, what is never exceeded, what is the same to the bit."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config

from covering import covered
from models import LAYER_TYPES, SMALL, small_model
from trials import COMBINED, plan_of, small_llm, tolerance
from winnow import LLM, SamplingParams
from winnow.engine.bound import bound_bytes
from winnow.engine.retained import Retained
from winnow.engine.sample import Sample
from winnow.errors import InputError
from winnow.plan import Plan
from winnow.policies.compute.base import Deep
from winnow.policies.registry import POLICIES

EVERY = [*(plan_of(name, policy.trial) for name, policy in POLICIES.items()), *map(Plan.parse, COMBINED)]
PROMPT = [5 + at * 7 % 90 for at in range(150)]
BOUNDED = "streaming(sink=2, recent=70)"


@pytest.fixture(scope="module")
def llm():
    return LLM(small_model("llama"), prefill_chunk=16)


def params(new=4, **others):
    return SamplingParams(max_tokens=new, ignore_eos=True, **others)


def answer(engine, ids, plan="full", new=4, **others):
    """The completions of a request that has the engine for itself; of one sample, that."""
    [request] = engine._llm.check([ids], params(new, **others), plan=plan)
    found = [output.completion for output in engine.follow(request) if output.completion is not None]
    return found[0] if len(found) == 1 else found


def begins(first):
    return [first, *PROMPT[1:100]]


def memory(engine):
    """Bytes of all that is running or retained, each piece once."""
    states = [job.state for entry in engine._running for job in entry.jobs if job.state.caches]
    pieces = {}
    for state in [*states, *(kept.state for kept in engine._retained._kept)]:
        for piece, nbytes in state.reached_nbytes.items():
            pieces[piece] = max(nbytes, pieces.get(piece, 0))
    return sum(pieces.values())


def test_nothing_is_retained_unless_it_is_told_to(llm):
    with llm.engine() as engine:
        for _ in range(2):
            assert answer(engine, PROMPT).stats.cached_tokens == 0
        assert engine.retained_bytes == 0
    for given in (-1, 1.5, True):
        with pytest.raises(InputError, match="retain_bytes"):
            llm.engine(retain_bytes=given)


def test_what_was_used_longest_ago_goes_first(llm):
    one = 103 * llm.decoder.shape.layers * llm.decoder.shape.kv_heads * llm.decoder.shape.unit_bytes
    with llm.engine(retain_bytes=int(3.1 * one)) as engine:
        for first in (3, 4, 5):
            assert answer(engine, begins(first)).stats.cached_tokens == 0
        assert engine.retained_bytes == 3 * one
        assert answer(engine, begins(3)).stats.cached_tokens == 99  # a turn for which nothing more is retained
        answer(engine, begins(6))
        assert [int(kept.tokens[0]) for kept in engine._retained._kept] == [5, 3, 6]
        assert 3 * one <= engine.retained_bytes == memory(engine) <= 3.1 * one


def test_a_request_goes_before_what_is_retained(llm):
    """What is retained makes room, at once and for all that is asked; nothing waits or is refused for it."""
    one = bound_bytes(Plan(), llm.decoder.shape, 100, 3, 16)
    with llm.engine(retain_bytes=2**40, max_cache_bytes=3 * one, max_sequences=9) as engine:
        for first in (3, 4, 5):
            answer(engine, begins(first))
        assert engine.retained_bytes == 3 * one
        for first in (6, 7):
            engine.add(begins(first), params())
        engine.step()
        assert (engine.waiting, engine.running) == (0, 2)
        assert [int(kept.tokens[0]) for kept in engine._retained._kept] == [5]
        while not engine.idle:
            engine.step()
            assert memory(engine) <= 3 * one
        assert len(engine._retained) == 3
        answer(engine, PROMPT[:1] * 300)  # more than any two of them leave
        assert memory(engine) <= 3 * one


@pytest.mark.parametrize("ahead", [0, 30])
def test_who_goes_on_from_it_keeps_what_it_needs_of_it(llm, ahead):
    """There is room for one of them alone: it goes on all the same, and the other is given back."""
    longer = [*PROMPT[:120], 9, 9]
    room = bound_bytes(Plan(), llm.decoder.shape, len(longer), 3 + ahead, 16)
    expected = answer(llm.engine(), longer, new=4 + ahead, logprobs=1)
    with llm.engine(retain_bytes=2**40, max_cache_bytes=room) as engine:
        answer(engine, PROMPT[:120], new=1)
        got = answer(engine, longer, new=4 + ahead, logprobs=1)
        assert got.stats.cached_tokens == 120
        assert got.stats.cached_rows + got.stats.rows_computed == expected.stats.rows_computed
        assert got.token_ids == expected.token_ids
        assert memory(engine) <= room


def test_units_of_others_in_shared_memory_count(llm):
    """A prompt goes on from a part of a text that is given back meanwhile; its other units are still there."""
    unit = llm.decoder.shape.layers * llm.decoder.shape.kv_heads * llm.decoder.shape.unit_bytes
    with llm.engine(retain_bytes=2**40, max_cache_bytes=400 * unit) as engine:
        answer(engine, PROMPT, new=1)
        [request] = llm.check([[*PROMPT[:100], 9]], params(20))
        engine.enqueue(request)
        engine.step()
        assert engine.reserved_bytes == (101 + 19 + 50) * unit
        engine._retained.clear()
        assert memory(engine) <= engine.reserved_bytes
        [request] = llm.check([[*PROMPT[:20], 9]], params(20))  # of which most would be others'
        engine.enqueue(request)
        engine.step()
        assert engine.reserved_bytes == (101 + 19 + 50 + 21 + 19) * unit


def test_what_is_let_go_is_what_was_counted():
    """A slab has another size for a sequence that it is shared with, once units of it have been evicted."""
    with LLM(small_model("llama"), prefill_chunk=512).engine(retain_bytes=2**40) as engine:
        ids = list(PROMPT[:40])
        for turn in range(5):
            ids += [*answer(engine, ids, "streaming(sink=4, recent=64)", new=60 + 9 * turn).token_ids, 9, turn]
        assert engine.retained_bytes > 0
        engine._retained.shrink(0)
        assert (engine.retained_bytes, memory(engine)) == (0, 0)


def test_units_of_others_count_where_windows_let_units_go():
    """A text goes on from a part of another one, whose units stay in memory that both share; what comes next goes on
    from that, and has no room for them."""
    shape = {"head_dim": 32, "sliding_window": 100, "layer_types": LAYER_TYPES, "query_pre_attn_scalar": 20}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Gemma2Config(**SMALL, **shape), attn_implementation="eager")
    llm = LLM(model.float().eval(), prefill_chunk=16)
    first, second = PROMPT[:95], [*PROMPT[:50], *PROMPT[:80]]
    with llm.engine(retain_bytes=2**40) as engine:
        answer(engine, first, new=1)
        got = answer(engine, second, new=2)
        assert got.stats.cached_tokens == 50
        third = [*second, *got.token_ids[:1], *PROMPT[:10]]
        engine.max_cache_bytes = bound_bytes(Plan(), llm.decoder.shape, len(third), 1, 16)
        [request] = llm.check([third], params(2))
        engine.enqueue(request)
        while not engine.idle:
            for output in engine.step():
                got = output.completion or got
            assert engine.reserved_bytes <= engine.max_cache_bytes
        assert got.stats.cached_tokens == len(second) + 1
    assert got.token_ids == answer(llm.engine(), third, new=2).token_ids


def test_a_text_that_is_rotated_otherwise_replaces_none():
    """A long one begins with all of a short one, and no short one could go on from it."""
    llm = LLM(small_model("phi3-longrope-short"), prefill_chunk=64)
    with llm.engine(retain_bytes=2**40) as engine:
        short = PROMPT[:120]
        answer(engine, short, new=1)
        assert answer(engine, [*short, *PROMPT, *PROMPT], new=1).stats.cached_tokens == 0
        assert answer(engine, [*short, 9, 9], new=1).stats.cached_tokens == 120


def test_another_question_over_a_text_does_not_copy_it(llm):
    unit = llm.decoder.shape.layers * llm.decoder.shape.kv_heads * llm.decoder.shape.unit_bytes
    with llm.engine(retain_bytes=2**40) as engine:
        for question in range(5):
            answer(engine, [*PROMPT, 9, 10 + question], new=2)
        assert engine.retained_bytes == memory(engine) < (151 + 5 * 4) * unit


@pytest.mark.parametrize("samples", [1, 3])
def test_aborted_and_failed(llm, samples, monkeypatch):
    """What a client has left can be gone on from, as far as it came; what has failed cannot."""
    sampled = {"n": samples, "temperature": 1.0, "seed": 1}
    with llm.engine(retain_bytes=2**40) as engine:
        number = engine.add(PROMPT, params(50, **sampled))
        while not engine._running or engine._running[0].jobs[0].prompt:
            engine.step()
        engine.step()
        engine.abort(number)
        assert engine.running == engine.reserved_bytes == 0
        assert answer(engine, [*PROMPT, 9]).stats.cached_tokens == 150
        unfinished = engine.add(PROMPT[::-1], params())
        engine.step()
        engine.abort(unfinished)
        assert answer(engine, PROMPT[::-1]).stats.cached_tokens == 0
    with llm.engine(retain_bytes=2**40) as engine:
        monkeypatch.setattr(Sample, "take", lambda self, logits: 1 / 0)
        engine.add(PROMPT, params(50, **sampled))
        list(engine.run())
        assert engine.retained_bytes == 0
        monkeypatch.undo()
        answer(engine, PROMPT)
        assert engine.retained_bytes > 0
        engine.close()
        assert engine.retained_bytes == len(engine._retained) == 0


def test_what_fails_before_it_begins_ends_and_the_others_go_on(llm, monkeypatch):
    with llm.engine(retain_bytes=2**30) as engine:
        answer(engine, PROMPT)
        with monkeypatch.context() as patch:
            patch.setattr(Retained, "kind", lambda *given: 1 / 0)
            engine.enqueue(llm.check([PROMPT], params())[0])
            found = [output.completion for output in engine.run()]
        assert [each.finish_reason for each in found] == ["error"]
        assert isinstance(found[0].error, ZeroDivisionError)
        assert engine.idle
        assert answer(engine, PROMPT).stats.cached_tokens == len(PROMPT) - 1


def test_other_weights_are_others(text):
    llm = LLM(small_model("llama"), prefill_chunk=16)
    with llm.engine(retain_bytes=2**40) as engine:
        answer(engine, PROMPT)
        with torch.no_grad():
            llm.model.model.layers[1].mlp.up_proj.weight.mul_(1.5)
        got = answer(engine, PROMPT, logprobs=1)
        assert got.stats.cached_tokens == 0
        assert len(engine._retained) == 1
        engine.add(PROMPT[::-1], params(9))
        while not engine.running:
            engine.step()
        with torch.no_grad():  # what has begun with the old ones is of no use either
            llm.model.model.layers[1].mlp.up_proj.weight.mul_(2)
        list(engine.run())
        assert answer(engine, [*PROMPT[::-1], 9]).stats.cached_tokens == 0
        with torch.no_grad():
            llm.model.model.layers[1].mlp.up_proj.weight.mul_(0.5)
        assert got.token_ids == answer(llm.engine(), PROMPT, logprobs=1).token_ids


@covered(plan=EVERY, family=("llama", "gemma2"))
def test_a_chat_under_every_plan_within_its_bytes(plan, family):
    """Three turns, each a prompt that goes on from the last one's answer; nothing ever holds more than it may."""
    llm, ids = small_llm(family), [5 + at * 7 % 90 for at in range(31)]
    room = 2 * bound_bytes(plan, llm.decoder.shape, 60, 4, 10, plan.compute.full_depth(ids, llm.services))
    with llm.engine(retain_bytes=2**40, max_cache_bytes=room) as engine:
        for turn in range(3):
            [request] = llm.check([ids], params(5, logprobs=0), plan=plan)
            [expected] = llm.generate([ids], params(5, logprobs=0), plan=plan)
            engine.enqueue(request)
            while not engine.idle:
                for output in engine.step():
                    got = output.completion
                assert engine.retained_bytes + engine.reserved_bytes <= room
                assert plan.store.in_files or memory(engine) <= room
            assert got.token_ids == expected.token_ids
            for mine, its in zip(got.logprobs, expected.logprobs, strict=True):
                assert mine == pytest.approx(its, abs=tolerance(plan))
            before, now = Deep.none(len(ids) - 9), Deep.none(len(ids))
            stable = min(plan.prefix_stable(len(ids) - 9, before), plan.prefix_stable(len(ids) - 1, now))
            assert bool(got.stats.cached_tokens) == (turn > 0 and stable > 0), (turn, stable)
            ids = [*ids, *got.token_ids, 9, 8 + turn, 7, 6]


READERS = [str(plan_of(name, policy.trial)) for name, policy in POLICIES.items() if policy.verb == "read"]
COMPRESSED = "snapkv(budget=40, chunk=24, window=8, local=9)"


@pytest.mark.parametrize(("first", "second"), [
    *(pair for reader in READERS for pair in (("full", reader), (reader, "full"))),
    (COMPRESSED, f"{COMPRESSED} + sink_recent(sink=2, recent=9)"),
    ("quest(budget=16, page=4)", "slowfast(budget=7, sink=2, recent=5, trigger='periodic')"),
])  # fmt: skip
def test_a_prompt_goes_on_from_one_that_is_read_otherwise(first, second):
    """As far as the readers of both say, and with what it would have computed itself."""
    llm = small_llm("llama")
    deep, others = Deep.none(len(PROMPT)), "h2o(budget=40, chunk=24, local=9)"
    [expected] = llm.generate([PROMPT], params(6, logprobs=0), plan=second)
    with llm.engine(retain_bytes=2**40) as engine:
        answer(engine, PROMPT, first)
        assert answer(engine, PROMPT, others).stats.cached_tokens == 0
        got = answer(engine, PROMPT, second, new=6, logprobs=0)
    there = Plan.parse(first).prefix_stable(len(PROMPT), deep)
    stable = Plan.parse(second).prefix_stable(min(there, len(PROMPT) - 1), deep)
    assert got.stats.cached_tokens == stable
    assert got.token_ids == expected.token_ids
    for mine, its in zip(got.logprobs, expected.logprobs, strict=True):
        assert mine == pytest.approx(its, abs=tolerance(Plan.parse(second)))


DETERMINISTIC = ("full", BOUNDED, "snapkv(budget=40, chunk=24, window=8, local=9)", "lazyllm(layers=[1, 2], keep=0.4)",
                 "slowfast(budget=7, sink=2, recent=5, bootstrap=20, trigger='periodic', interval=3)")  # fmt: skip


@pytest.mark.parametrize("plan", DETERMINISTIC)
def test_to_the_bit_where_nothing_may_be_rounded_otherwise(plan):
    """Of a deterministic model whole chunks of prompts are gone on from, and nothing that was generated."""
    llm = LLM(small_model("llama", dtype=torch.bfloat16), prefill_chunk=12, deterministic=True)
    longer = [*PROMPT, 9, 10, *PROMPT[:20]]
    [expected] = llm.generate([longer], params(9, logprobs=5), plan=plan)
    with llm.engine(retain_bytes=2**40) as engine:
        first = answer(engine, PROMPT, plan, new=2)
        got = answer(engine, [*PROMPT, *first.token_ids, 8], plan)
        assert 96 <= got.stats.cached_tokens <= 144
        assert got.stats.cached_tokens % 12 == 0
        got = answer(engine, longer, plan, new=9, logprobs=5)
        assert got.stats.cached_tokens >= 96
        assert (got.token_ids, got.logprobs) == (expected.token_ids, expected.logprobs)
