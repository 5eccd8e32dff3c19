"""Requests that come and go: order, limits, bytes, ends of every kind."""

import threading
import time
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from covering import covered
from driving import decode, prefill
from models import small_model
from tokenizers_for_tests import byte_tokenizer
from trials import COMBINED, fresh, held, plan_of, small_llm
from winnow import LLM, Plan, SamplingParams
from winnow.engine import entry as entry_module
from winnow.engine import services
from winnow.engine.bound import bound_bytes
from winnow.engine.engine import Engine
from winnow.engine.pace import FIRST, Pace
from winnow.errors import CapacityError, InputError
from winnow.policies.registry import POLICIES
from winnow.runtime.decoder import Decoder
from winnow.runtime.observer import Observer
from winnow.runtime.sequence import Sequence

EVERY = [*(plan_of(name, policy.trial) for name, policy in POLICIES.items()), *map(Plan.parse, COMBINED)]
LAZY = "lazyllm(layers=[1, 2], keep=0.6)"


@pytest.fixture(scope="module")
def llm():
    return LLM(small_model("llama"), prefill_chunk=16)


def params(new, **others):
    return SamplingParams(max_tokens=new, ignore_eos=True, **others)


def ended(engine):
    """Steps until all is done; returns the completions by request."""
    return {output.request_id: output.completion for output in engine.run() if output.completion is not None}


def states(engine):
    return [job.state for entry in engine._running for job in entry.jobs if job.state.caches]


@pytest.fixture
def rows(monkeypatch):
    """The rows that went through each call of a layer, in order."""
    counted, true = [], Decoder.layer

    def layer(self, index, hidden, call):
        counted.append(hidden.shape[1])
        return true(self, index, hidden, call)

    monkeypatch.setattr(Decoder, "layer", layer)
    return counted


def test_outputs_join_to_what_generate_gives(text):
    llm = LLM(small_model("llama"), tokenizer=byte_tokenizer(), prefill_chunk=16)
    prompts = [text[:40], text[5:20]]
    expected = llm.generate(prompts, params(9), plan=["full", "streaming(sink=2, recent=9)"])
    engine, tokens, pieces = llm.engine(max_step_tokens=7), {}, {}
    plans = ("full", "streaming(sink=2, recent=9)")
    ids = [engine.add(prompt, params(9), plan=plan) for prompt, plan in zip(prompts, plans, strict=True)]
    for output in engine.run():
        tokens.setdefault(output.request_id, []).extend(output.token_ids)
        pieces[output.request_id] = pieces.get(output.request_id, "") + output.text
    for request_id, completion in zip(ids, expected, strict=True):
        assert tokens[request_id] == completion.token_ids
        assert pieces[request_id] == completion.text
        assert len(completion.token_ids) == 9


def test_who_decodes_gets_a_token_in_every_step_while_a_prompt_is_processed(llm, text, rows):
    engine = llm.engine(max_step_tokens=6)
    first = engine.add(text[:6], params(30))
    engine.step()
    second = engine.add(text, params(2))
    rows.clear()
    steps = 0
    while True:
        outputs = engine.step()
        assert [output.token_ids != [] for output in outputs if output.request_id == first] == [True]
        steps += 1
        if any(output.request_id == second for output in outputs):
            break
    assert steps == -(-len(text) // 5)  # five rows beside the one that decodes
    assert max(rows) == 6
    engine.close()


@pytest.mark.parametrize("plan", [LAZY, "static_prune(keep=0.9, layers=2)"])
def test_rows_that_go_on_all_at_once_are_cut_into_steps_too(llm, text, plan, rows):
    """The others go on meanwhile, a step does no more than it may, and the answer is the same."""
    most, layers = 6, llm.decoder.shape.layers
    [expected] = llm.generate([text], params(4, logprobs=1), plan=plan)
    engine = llm.engine(max_step_tokens=most)
    first = engine.add(text[:6], params(60))
    engine.step()
    second = engine.add(text, params(4, logprobs=1), plan=plan)
    heard = set()
    while second not in heard:  # after its first token come decode steps, with revived rows
        rows.clear()
        heard = {output.request_id for output in engine.step() if output.token_ids}
        assert first in heard
        assert sum(rows) <= layers * most + most
    got = next(output.completion for output in engine.run() if output.completion and output.request_id == second)
    assert got.token_ids == expected.token_ids
    for mine, theirs in zip(got.logprobs, expected.logprobs, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)
    assert got.stats.rows_computed == expected.stats.rows_computed
    engine.close()


def test_prompts_are_processed_first_come_first_served(llm, text):
    engine = llm.engine(max_step_tokens=8)
    ids = [engine.add(text[:length], params(3)) for length in (40, 10, 20)]
    firsts = []
    for output in engine.run():
        if output.request_id not in firsts:
            firsts.append(output.request_id)
    assert firsts == ids


@covered(plan=EVERY, family=("llama", "gemma2"), chunk=(4, 64))
def test_what_is_held_is_never_above_the_bound(plan, family, chunk, text):
    llm = small_llm(family)
    llm = replace_chunk(llm, chunk)
    prompt, new = text[:31], len(text) - 31
    deep = plan.compute.full_depth(prompt, llm.services)
    bound = bound_bytes(plan, llm.decoder.shape, len(prompt), new, chunk, deep)
    state, shown = fresh(llm, plan, text)
    prefill(llm.decoder, state, shown, chunk)
    for token in text[31:]:
        decode(llm.decoder, [(state, token)])
    state.measure()
    assert 0 < state.stats.total_bytes <= bound
    if plan.is_full and family == "llama":
        assert state.stats.total_bytes == bound


@pytest.mark.parametrize(("plan", "family"), [
    ("streaming(sink=2, recent=20) + quantized(bits=4, group=16, residual=0, chunk=20)", "llama"),
    ("streaming(sink=2, recent=20) + quantized(bits=4, group=16, residual=0, chunk=70)", "llama"),
    ("quantized(bits=4, group=16, residual=0, chunk=40)", "gemma2"),
    ("quantized(bits=2, group=32, residual=7, chunk=30)", "gemma2"),
    ("hf_quantized(bits=2, group_size=8, residual_length=30, chunk=12)", "gemma2"),
    ("streaming(sink=2, recent=20) + hf_quantized(bits=4, group_size=8, residual_length=50)", "llama"),
])  # fmt: skip
def test_units_that_left_a_window_are_in_the_bound_for_as_long_as_a_store_holds_them(plan, family, text):
    """Codes of them go at the store's next turn."""
    llm, plan, text = small_llm(family), Plan.parse(plan), text * 3
    prompt, new = text[:96], len(text) - 96
    for chunk in (4, 7, 64):
        bound = bound_bytes(plan, llm.decoder.shape, len(prompt), new, chunk)
        state, _ = fresh(replace_chunk(llm, chunk), plan, text, prompt=len(prompt))
        prefill(llm.decoder, state, prompt, chunk)
        for token in text[len(prompt) :]:
            decode(llm.decoder, [(state, token)])
        state.measure()
        assert 0 < state.stats.total_bytes <= bound


def replace_chunk(llm, chunk):
    import copy

    twin = copy.copy(llm)
    twin.prefill_chunk = chunk
    return twin


def test_admission_waits_for_bytes_and_never_holds_more(llm, text):
    one = bound_bytes(Plan(), llm.decoder.shape, len(text), 4, 16)
    engine = llm.engine(max_step_tokens=16, max_cache_bytes=int(2.5 * one))
    for _ in range(5):
        engine.add(text, params(5))
    most = 0
    while not engine.idle:
        engine.step()
        most = max(most, engine.running)
        assert sum(sum(state.held()) for state in states(engine)) <= engine.reserved_bytes <= 2.5 * one
    assert most == 2


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_samples_reserve_what_they_share_once(family):
    llm, prompt, n, fed = small_llm(family), [5 + at % 90 for at in range(100)], 3, 4
    shape, asked = llm.decoder.shape, params(fed + 1, n=n, temperature=1.0, seed=1)
    full, unit = shape.windows.count(None), shape.kv_heads * shape.unit_bytes
    windows = [n * (window - 1 + 16) for window in shape.windows if window is not None]
    needed = unit * (full * (len(prompt) + n * fed) + sum(windows))
    assert needed < n * bound_bytes(Plan(), shape, len(prompt), fed, 16)
    with pytest.raises(CapacityError, match=f"{needed:,} bytes"):
        llm.engine(max_step_tokens=16, max_cache_bytes=needed - 1).add(prompt, asked)
    engine, most = llm.engine(max_step_tokens=16, max_cache_bytes=needed), 0
    engine.add(prompt, asked)
    while not engine.idle:
        engine.step()
        most = max(most, held(engine))
        assert held(engine) <= engine.reserved_bytes <= needed
    if family == "llama":  # the last token is fed in the step that ends it
        assert most == unit * full * (len(prompt) + n * (fed - 1))


def test_what_can_never_fit_is_refused_with_the_figures(llm, text):
    one = bound_bytes(Plan(), llm.decoder.shape, len(text), 4, 16)
    engine = llm.engine(max_cache_bytes=2 * one)
    engine.add(text, params(5, n=2, temperature=1.0))
    with pytest.raises(CapacityError, match=rf"{3 * one:,} bytes under full.*max_cache_bytes={2 * one:,}"):
        engine.add(text, params(5, n=3, temperature=1.0))
    assert engine.waiting == 1
    engine.close()


@pytest.mark.parametrize("after", [0, 1, 4, 9])
def test_abort_ends_a_request_wherever_it_is(llm, text, after):
    engine = llm.engine(max_step_tokens=8, max_sequences=2)
    stays, goes, waits = (engine.add(text, params(6), plan=LAZY) for _ in range(3))
    for _ in range(after):
        engine.step()
    engine.abort(goes)
    engine.abort(goes)
    done = ended(engine)
    assert {done[stays].finish_reason, done[waits].finish_reason} == {"length"}
    assert done[goes].finish_reason == "abort"
    assert done[stays].token_ids == done[waits].token_ids
    assert len(done[goes].token_ids) < 6
    assert (engine.reserved_bytes, engine.running, engine.waiting) == (0, 0, 0)
    engine.abort(goes)
    with pytest.raises(InputError, match="no request 77"):
        engine.abort(77)


def test_aborted_bytes_go_back_at_once(llm, text):
    engine = llm.engine(max_step_tokens=64)
    request = engine.add(text, params(20))
    engine.step()
    [state] = states(engine)
    assert sum(state.held()) > 0
    engine.abort(request)
    assert sum(state.held()) == engine.reserved_bytes == 0
    [output] = engine.step()
    assert (output.completion.finish_reason, output.token_ids) == ("abort", [])
    assert engine.idle


def test_an_error_ends_whom_it_hit_and_nobody_else(llm, text, monkeypatch):
    engine = llm.engine(max_step_tokens=8)
    first = engine.add(text[:8], params(12))
    engine.step()
    second = engine.add(text[:30], params(3), plan=LAZY)
    true = Decoder.layer

    def fails(self, index, hidden, call):
        if [part.sequence.plan.is_full for part in call.parts] == [False] and call.parts[0].known == 30:
            raise MemoryError("no room for units")
        return true(self, index, hidden, call)

    monkeypatch.setattr(Decoder, "layer", fails)
    done = ended(engine)
    assert done[first].finish_reason == "length"
    assert done[second].finish_reason == "error"
    assert "no room" in str(done[second].error)
    assert engine.reserved_bytes == 0
    assert done[first].token_ids == llm.generate([text[:8]], params(12))[0].token_ids


class ShortOfMemory:
    """Makes a layer run out of memory whenever at least so many sequences go through it, `times` times."""

    def __init__(self, monkeypatch, parts, times=1000):
        self.times, true = times, Decoder.layer

        def layer(decoder, index, hidden, call):
            if self.times and index == 1 and len(call.parts) >= parts:
                self.times -= 1
                raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes")
            return true(decoder, index, hidden, call)

        monkeypatch.setattr(Decoder, "layer", layer)


def test_what_a_request_is_told_and_raises_ends_it_and_nobody_else(llm, text):
    """While it is processed, and where it begins, whatever else is under way."""
    [request] = llm.check([text[:30]], params(3))
    for after in (1, 2):
        calls = []

        def told(tokens, calls=calls, after=after):
            calls.append(tokens)
            if len(calls) == after:
                raise ValueError("of its own")

        with llm.engine() as engine:
            first = engine.add(text[:20], params(6))
            engine.step()
            failed, last = engine.enqueue(request, told), engine.add(text[5:25], params(3))
            found = ended(engine)
            assert (found[first].finish_reason, found[last].finish_reason) == ("length", "length")
            assert isinstance(found[failed].error, ValueError)
            assert engine.reserved_bytes == 0


def test_following_one_leaves_the_others_what_is_theirs(llm, text):
    [request] = llm.check([text[:30]], params(2))
    with llm.engine() as engine:
        other = engine.add(text[:20], params(10))
        followed = [output.request_id for output in engine.follow(request)]
        assert followed == [other + 1] * 2
        assert engine.running == 1
        outputs = [output for output in engine.run() if output.request_id == other]
        assert len(outputs) == 10
        assert outputs[-1].completion.token_ids == [token for output in outputs for token in output.token_ids]


def test_what_was_not_yielded_comes_with_the_next_step(llm, text):
    with llm.engine() as engine:
        for at in (0, 3):
            engine.add(text[at : at + 20], params(3))
        outputs = []
        for output in engine.run():
            outputs.append(output)
            if output.completion is not None:
                break
        assert not engine.idle
        outputs += engine.run()
        assert sorted(output.request_id for output in outputs) == [1] * 3 + [2] * 3
        assert len([output for output in outputs if output.completion is not None]) == 2
        engine.add(text[:20], params(3))
        going = engine.run()
        next(going)
    going.close()
    assert engine.idle


@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize("plan", ["full", "streaming(sink=2, recent=9)", LAZY])
def test_too_little_memory_ends_the_newest_and_the_others_go_on(llm, text, monkeypatch, plan, after):
    sampled = params(7, temperature=1.0, seed=5, n=2)
    expected = [llm.generate([text[:20]], each, plan=plan)[0].token_ids for each in (params(7), sampled)]
    engine, said = llm.engine(max_step_tokens=200), {}
    first, second = engine.add(text[:20], params(7), plan=plan), engine.add(text[:20], sampled, plan=plan)
    outputs = [output for _ in range(after) for output in engine.step()]
    third = engine.add(text[:20], params(7), plan=plan)
    outputs += engine.step()
    ShortOfMemory(monkeypatch, parts=4)
    outputs += engine.run()
    for output in outputs:
        said.setdefault((output.request_id, output.sample_index), []).extend(output.token_ids)
    ends = {(o.request_id, o.sample_index): o.completion for o in outputs if o.completion is not None}
    assert len([output for output in outputs if output.completion is not None]) == 4
    assert ends[third, 0].finish_reason == "error"
    assert "not enough memory" in str(ends[third, 0].error)
    assert ends[first, 0].token_ids == said[first, 0] == expected[0]
    assert ends[second, 0].token_ids == said[second, 0] == expected[1]
    assert ends[second, 1].token_ids == said[second, 1]
    assert {ends[key].finish_reason for key in ((first, 0), (second, 0), (second, 1))} == {"length"}
    assert (engine.reserved_bytes, engine.running, engine.waiting) == (0, 0, 0)


def test_what_is_retained_goes_before_anybody_ends(llm, text, monkeypatch):
    engine = llm.engine(max_step_tokens=200, retain_bytes=2**30)
    engine.add(text, params(2))
    ended(engine)
    assert engine.retained_bytes
    numbers = [engine.add(text[9 * index :][:20], params(6)) for index in range(3)]
    engine.step()
    ShortOfMemory(monkeypatch, parts=3, times=1)
    done = ended(engine)
    assert {done[number].finish_reason for number in numbers} == {"length"}
    for index, number in enumerate(numbers):
        assert done[number].token_ids == llm.generate([text[9 * index :][:20]], params(6))[0].token_ids


@pytest.mark.parametrize("plan", ["full", "streaming(sink=2, recent=9)", LAZY])
@pytest.mark.parametrize("together", [1, 3])
def test_who_alone_is_too_large_ends(llm, text, monkeypatch, plan, together):
    """Also where every beginning retains something on its way."""
    engine = llm.engine(max_step_tokens=200, retain_bytes=2**30)
    numbers = [engine.add(text[:20], params(6), plan=plan) for _ in range(together)]
    engine.step()
    ShortOfMemory(monkeypatch, parts=1, times=30)
    done = ended(engine)
    assert {done[number].finish_reason for number in numbers} == {"error"}
    assert engine.reserved_bytes == 0


def test_who_is_too_large_does_not_end_all_that_come_after(llm, text, monkeypatch):
    """One that fails again and again, beside others that come while it does."""
    engine = llm.engine(max_step_tokens=200)
    large = engine.add(text[:30], params(6))
    engine.step()
    true = Decoder.layer

    def layer(decoder, index, hidden, call):
        if any(part.sequence.prompt == 30 for part in call.parts):
            raise MemoryError("no room")
        return true(decoder, index, hidden, call)

    monkeypatch.setattr(Decoder, "layer", layer)
    done = {}
    for _ in range(12):
        engine.add(text[:20], params(2))
        done.update({output.request_id: output.completion for output in engine.step() if output.completion})
    done.update(ended(engine))
    assert done.pop(large).finish_reason == "error"
    reasons = [each.finish_reason for each in done.values()]
    assert (len(reasons), reasons.count("length") >= 8) == (12, True)


def test_the_newest_ends_though_its_step_was_another_one(text, monkeypatch):
    """Of a deterministic model each sequence has a pass of its own."""
    llm = LLM(small_model("llama"), prefill_chunk=16, deterministic=True)
    engine = llm.engine(max_step_tokens=200)
    first, second = engine.add(text[:20], params(6)), engine.add(text[:20], params(6))
    engine.step()
    ShortOfMemory(monkeypatch, parts=1, times=1)
    done = ended(engine)
    assert (done[first].finish_reason, done[second].finish_reason) == ("length", "error")
    assert done[first].token_ids == llm.generate([text[:20]], params(6))[0].token_ids


def test_what_is_retained_goes_before_a_request_cannot_begin(llm, text, monkeypatch):
    engine = llm.engine(retain_bytes=2**30)
    engine.add(text, params(2))
    ended(engine)
    true = entry_module.admit

    def admit(*given):
        if engine.retained_bytes:
            raise MemoryError("no room for units")
        return true(*given)

    monkeypatch.setattr(entry_module, "admit", admit)
    number = engine.add(text[:20], params(3))
    assert ended(engine)[number].finish_reason == "length"
    monkeypatch.setattr(entry_module, "admit", lambda *given: 1 / 0)
    number = engine.add(text[:20], params(3))
    assert isinstance(ended(engine)[number].error, ZeroDivisionError)
    assert engine.idle


def test_samples_that_had_ended_do_not_begin_anew(text, monkeypatch):
    llm = LLM(small_model("llama"), tokenizer=byte_tokenizer(), prefill_chunk=16)
    sampled = SamplingParams(max_tokens=12, temperature=1.0, seed=3, n=4, stop_token_ids=list(range(90)))
    expected = llm.generate([text[:30]], sampled)
    lengths = sorted({len(each.token_ids) for each in expected})
    assert len(lengths) > 1
    engine = llm.engine(max_step_tokens=200)
    engine.add(text[:30], sampled)
    late = engine.add(text[:20], params(30))
    outputs = [output for _ in range(1 + lengths[0]) for output in engine.step()]
    ShortOfMemory(monkeypatch, parts=2)
    outputs += engine.run()
    ends = [output for output in outputs if output.completion is not None]
    assert sorted((each.request_id, each.sample_index) for each in ends) == [
        *((1, index) for index in range(4)),
        (late, 0),
    ]
    for index, each in enumerate(expected):
        mine = [output for output in outputs if (output.request_id, output.sample_index) == (1, index)]
        assert [token for output in mine for token in output.token_ids] == each.token_ids
        assert "".join(output.text for output in mine) == each.text


@pytest.mark.parametrize("steps", range(6))
def test_what_was_told_stays_said_if_it_ends_before_it_is_there_again(text, monkeypatch, steps):
    """While it waits, in its prompt, and among the tokens that it is given."""
    llm = LLM(small_model("llama"), tokenizer=byte_tokenizer(), prefill_chunk=16)
    engine = llm.engine(max_step_tokens=32)
    first = engine.add(text[:60], params(40, stop=["never"], logprobs=2))
    outputs = [output for _ in range(8) for output in engine.step()]
    engine.add(text[:20], params(30))
    outputs += [output for _ in range(2) for output in engine.step()]
    ShortOfMemory(monkeypatch, parts=2, times=1)
    outputs += [output for _ in range(1 + steps) for output in engine.step()]
    engine.abort(first)
    *told, last = [output for output in (*outputs, *engine.step()) if output.request_id == first]
    assert last.completion.finish_reason == "abort"
    assert len(last.completion.logprobs) == len(last.completion.token_ids) > 6
    assert last.completion.token_ids == [token for output in told for token in output.token_ids]
    assert last.completion.text == "".join(output.text for output in (*told, last)) != ""


def test_what_has_been_released_is_not_retained(text, monkeypatch):
    """One that begins anew and is given up in its prompt: what it had before holds nothing any more."""
    llm = LLM(small_model("llama"), tokenizer=byte_tokenizer(), prefill_chunk=16)
    engine = llm.engine(max_step_tokens=32, retain_bytes=2**20)
    engine.add(text[:40], params(2))
    ended(engine)
    again = engine.add((text * 2)[:60], params(40))
    for _ in range(8):
        engine.step()
    ShortOfMemory(monkeypatch, parts=1, times=1)
    for _ in range(2):
        engine.step()
    engine.abort(again)
    engine.step()
    assert all(kept.state.caches for kept in engine._retained._kept)
    for prompt in (text[:30], text[:3] + text[30:45]):
        engine.add(prompt, params(2))
        assert [each.finish_reason for each in ended(engine).values()] == ["length"]


@pytest.mark.parametrize("where", ["logits", "draw"])
def test_an_error_after_the_layers_ends_whom_it_hit(llm, text, monkeypatch, where):
    engine = llm.engine(max_step_tokens=2 * len(text))
    engine.add(text, params(3))
    second = engine.add(text, params(3, n=2, temperature=1.0))

    def fails(*_, **__):
        raise RuntimeError("no such number")

    target = (Decoder, "logits") if where == "logits" else (torch, "multinomial")
    with monkeypatch.context() as patch:
        patch.setattr(*target, fails)
        done = [output.completion for output in engine.step() if output.completion]
    assert {str(completion.error) for completion in done} == {"no such number"}
    assert len(done) == (3 if where == "logits" else 2)
    engine.abort(second)
    assert all(completion.finish_reason == "length" for completion in ended(engine).values())
    assert engine.reserved_bytes == 0


def test_an_interrupted_step_leaves_nothing_half_done(llm, text, monkeypatch):
    engine = llm.engine(max_step_tokens=8)
    engine.add(text, params(5))
    engine.step()

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "layer", stop)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    [output] = engine.step()
    assert output.completion.finish_reason == "error"
    assert engine.idle


def test_requests_may_come_from_any_thread(llm, text):
    alone = llm.generate([text[:20]], params(5))[0].token_ids
    engine, ids = llm.engine(max_step_tokens=8), []

    def ask():
        for turn in range(5):
            ids.append(engine.add(text[:20], params(5)))
            if turn == 3:
                engine.abort(ids[-1])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    done = {}
    while any(thread.is_alive() for thread in threads) or not engine.idle:
        done |= {output.request_id: output.completion for output in engine.step() if output.completion}
    assert sorted(done) == list(range(1, 21))
    for completion in done.values():
        assert completion.token_ids == alone[: len(completion.token_ids)]
        assert completion.finish_reason in ("length", "abort")


def test_several_samples_share_the_prompt_and_end_one_by_one(llm, text):
    engine = llm.engine()
    request = engine.add(text, params(6, n=3, temperature=1.0, seed=5))
    done = [output.completion for output in engine.run() if output.completion]
    assert [completion.sample_index for completion in done] == [0, 1, 2]
    assert request == 1
    expected = llm.generate([text], params(6, n=3, temperature=1.0, seed=5))
    assert [each.token_ids for each in done] == [each.token_ids for each in expected]


def test_closing_ends_everything(llm, text):
    engine = llm.engine(max_step_tokens=8, max_sequences=1)
    for _ in range(2):
        engine.add(text, params(5))
    engine.step()
    [state] = states(engine)
    engine.close()
    assert engine.idle
    assert not state.caches
    with pytest.raises(InputError, match="closed"):
        engine.add(text, params(5))


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"max_step_tokens": 0}, "max_step_tokens=0"),
        ({"max_cache_bytes": 1.5}, "max_cache_bytes=1.5"),
        ({"max_sequences": True}, "max_sequences=True"),
        ({"max_step_s": 0.0}, "max_step_s=0.0"),
    ],
)
def test_limits_that_are_none(llm, limit, words):
    with pytest.raises(InputError, match=words):
        Engine(llm, **limit)


def test_parameters_and_plans_for_each_prompt(llm, text):
    plans, each = ["full", "streaming(sink=2, recent=9)"], [params(3), params(7)]
    got = llm.generate([text, text], each, plan=plans)
    expected = [llm.generate([text], p, plan=plan)[0] for p, plan in zip(each, plans, strict=True)]
    assert [completion.token_ids for completion in got] == [completion.token_ids for completion in expected]
    untimed = {"queue_s": 0, "ttft_s": 0, "total_s": 0}
    assert [replace(a.stats, **untimed) for a in got] == [replace(b.stats, **untimed) for b in expected]
    with pytest.raises(InputError, match="plan: 3 for 2 prompts"):
        llm.generate([text, text], plan=["full"] * 3)
    with pytest.raises(InputError, match="params: 1 for 2 prompts"):
        llm.generate([text, text], each[:1])


def test_time_to_the_first_token_counts_from_arrival(llm, text):
    engine = llm.engine(max_sequences=1)
    for _ in range(3):
        engine.add(text, params(4))
    done = ended(engine)
    assert done[1].stats.ttft_s < done[1].stats.total_s < done[2].stats.ttft_s < done[3].stats.ttft_s
    for before, after in ((1, 2), (2, 3)):  # one begins where the other has ended
        assert done[before].stats.ttft_s < done[after].stats.queue_s < done[after].stats.ttft_s
    assert done[1].stats.queue_s < done[1].stats.ttft_s


def steps_of(pace, decodes, step_s, count=40):
    """So many steps that take what `step_s` says of their tokens of prompts; returns how many those were."""
    seen = []
    for _ in range(count):
        seen.append(pace.offer(decodes))
        pace.note(seen[-1], step_s(seen[-1]))
    return seen


def test_the_pace_follows_what_steps_take():
    """A step that costs 2 ms and 0.5 ms a token, and may take 20 ms, comes to have 36 tokens."""
    pace = Pace(0.020, 512)
    seen = steps_of(pace, 0, lambda rows: 0.002 + 0.0005 * rows)
    assert seen[0] == FIRST
    assert all(after <= 2 * before for before, after in pairwise(seen))
    assert 32 <= seen[-1] <= 36
    assert seen[-1] % 4 == 0  # whole tiles
    pace.note(3, 0.001)  # the end of a prompt says nothing of longer pieces
    assert pace.offer(0) == seen[-1]
    pace.note(seen[-1], 1.0)
    assert pace.offer(0) <= seen[-1] // 2
    assert steps_of(pace, 0, lambda rows: 1.0)[-1] == 1


def test_the_pace_knows_what_decode_steps_take_alone():
    """Of 48 ms others take 30, so that tokens of 3 ms, few at first, come to be two tiles with the decode rows."""
    for decodes, expected in ((3, 5), (2, 6)):
        pace = Pace(0.048, 512)
        steps_of(pace, decodes, lambda rows: 1.0)
        pace.note(0, 0.030)
        seen = steps_of(pace, decodes, lambda rows: 0.030 + 0.003 * rows)
        assert seen[0] == 1
        assert seen[-1] == expected
        assert max(seen) <= 6


def test_the_pace_fills_a_tile_that_is_begun():
    """Of 40 ms others take 16, and any tokens 14 more, which one alone would make too dear for a second."""
    pace = Pace(0.040, 512)
    steps_of(pace, 4, lambda rows: 1.0)
    pace.note(0, 0.016)
    seen = steps_of(pace, 4, lambda rows: 0.030 + 0.0015 * rows + (0.014 if rows > 4 else 0.0))
    assert seen[0] == 1
    assert seen[-1] == max(seen) == 4
    assert steps_of(pace, 4, lambda rows: 0.030 + 0.0075 * rows)[-1] == 1  # there is no time for more of it


def test_a_pace_that_decode_steps_alone_exceed_lets_prompts_go_on():
    pace = Pace(0.010, 512)
    pace.note(0, 0.030)
    assert steps_of(pace, 4, lambda rows: 0.030 + 0.002 * rows)[-1] == 1


def test_logits_of_a_session_and_of_the_engine_are_the_same(llm, text):
    with llm.session(plan=LAZY, max_tokens=4) as session:
        logits = session.feed(text)
    [completion] = llm.generate([text], params(1, logprobs=96), plan=LAZY)
    row = logits[0].log_softmax(-1)
    top = torch.tensor([completion.logprobs[0][token] for token in sorted(completion.logprobs[0])])
    torch.testing.assert_close(top, row[sorted(completion.logprobs[0])], rtol=0, atol=1e-5)


class Refuses(Observer):
    def begun(self, sequence, prompt):
        raise RuntimeError("not this one")


@pytest.mark.parametrize("observed", [True, False])
def test_what_fails_as_it_begins_holds_no_memory(llm, text, monkeypatch, observed):
    """The error stays with the completion, and what its traceback still sees of the sequence is empty."""
    [request] = llm.check([text[:20]], params(4))
    if observed:
        request = replace(request, observer=Refuses())
    else:
        monkeypatch.setattr(services, "plant", lambda *given: 1 / 0)
    with llm.engine() as engine:
        engine.enqueue(request)
        [completion] = ended(engine).values()
        assert (completion.finish_reason, engine.reserved_bytes) == ("error", 0)
    seen, frame = [], completion.error.__traceback__
    while frame is not None:
        seen += [each for each in frame.tb_frame.f_locals.values() if isinstance(each, Sequence)]
        frame = frame.tb_next
    assert seen
    assert all(cache.allocated_nbytes == 0 for state in seen for cache in state.own_caches())


def test_who_stops_following_leaves_nothing(llm, text):
    engine = llm.engine()
    for _ in range(3):
        [request] = llm.check([text[:20]], params(9))
        followed = engine.follow(request)
        next(followed)
        followed.close()
    assert engine.idle
    assert engine.step() == []


def test_two_that_follow_lose_nothing_to_each_other(llm, text, monkeypatch):
    """Each may step for the other, and be interrupted anywhere."""
    engine, found = llm.engine(), {}
    whole = Engine.step

    def slow(self):
        brought = whole(self)
        time.sleep(0.005)
        return brought

    monkeypatch.setattr(Engine, "step", slow)

    def follow(name):
        [request] = llm.check([text[:20]], params(5))
        found[name] = [(output.token_ids, output.completion is not None) for output in engine.follow(request)]

    for turn in range(6):
        threads = [threading.Thread(target=follow, args=((turn, each),)) for each in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 12
    for brought in found.values():
        assert sum(len(tokens) for tokens, _ in brought) == 5
        assert [ended for _, ended in brought].count(True) == 1
    assert engine.idle
