"""Callers that await their answers, side by side."""

import asyncio
import os
import platform
import subprocess
import sys
import time

import pytest
import torch
from benchmarks.resident import resident_of

from models import small_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM, SamplingParams
from winnow.engine import background
from winnow.engine.freed import give_back
from winnow.errors import CapacityError, InputError, PlanError

PARAMS = SamplingParams(max_tokens=8, ignore_eos=True)


@pytest.fixture
def llm(monkeypatch):
    monkeypatch.setattr(background, "LINGER_S", 0.2)
    return LLM(small_model("llama"), tokenizer=byte_tokenizer(), prefill_chunk=16)


def tokens(completions):
    return [completion.token_ids for completion in completions]


def test_awaited_answers_are_those_of_generate(llm, text):
    prompts, plans = [text[:40], text[5:20]], ["full", "streaming(sink=2, recent=9)"]

    async def ask():
        both = llm.agenerate(prompts, PARAMS, plan=plans)
        sampled = llm.agenerate(text, SamplingParams(max_tokens=5, n=2, temperature=1.0, seed=3, ignore_eos=True))
        return await asyncio.gather(both, sampled)

    both, sampled = asyncio.run(ask())
    assert tokens(both) == tokens(llm.generate(prompts, PARAMS, plan=plans))
    assert [completion.sample_index for completion in sampled] == [0, 1]
    assert all(len(each) == 5 for each in tokens(sampled))


def test_awaited_streams_join_to_the_text(llm, text):
    async def listen(prompt):
        ended = []
        pieces = [piece async for piece in llm.astream(prompt, PARAMS, on_finish=ended.append)]
        return "".join(pieces), ended[0]

    async def all_of_them():
        return await asyncio.gather(*(listen(text[start:40]) for start in range(4)))

    for start, (joined, completion) in enumerate(asyncio.run(all_of_them())):
        [expected] = llm.generate([text[start:40]], PARAMS)
        assert joined == completion.text == expected.text
        assert completion.token_ids == expected.token_ids


def test_who_stops_listening_aborts(llm, text):
    async def leave():
        stream = llm.astream(text[:20], SamplingParams(max_tokens=400, ignore_eos=True))
        async for _ in stream:
            break
        await stream.aclose()
        task = asyncio.create_task(llm.agenerate(text[:20], SamplingParams(max_tokens=400, ignore_eos=True)))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await llm.agenerate(text[:20], PARAMS)

    assert tokens(asyncio.run(leave())) == tokens(llm.generate(text[:20], PARAMS))
    engine = llm._background._engine
    deadline = time.monotonic() + 5
    while not engine.idle and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (engine.idle, engine.reserved_bytes, llm._background._listeners) == (True, 0, {})


def test_the_thread_ends_by_itself_and_begins_again(llm, text):
    for _ in range(2):
        asyncio.run(llm.agenerate(text[:20], PARAMS))
        thread = llm._background._thread
        assert thread is not None
        thread.join(5)
        assert not thread.is_alive()


def test_free_memory_goes_back_once_nothing_comes(llm, text, monkeypatch):
    given = []
    monkeypatch.setattr(background, "SETTLE_S", 0.05)
    monkeypatch.setattr(background, "give_back", lambda: given.append(len(done)))
    done = []

    async def ask():
        done.extend(await llm.agenerate([text[:20], text[:10]], PARAMS))

    asyncio.run(ask())
    deadline = time.monotonic() + 10
    while not given and time.monotonic() < deadline:
        time.sleep(0.01)
    assert given == [2]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators give back what is free by themselves")
def test_what_is_free_between_blocks_in_use_is_given_back():
    blocks = [torch.ones(2**14) for _ in range(2**10)]  # 64 KiB each
    del blocks[:-1]  # behind the last one, so that no heap ends with what is free
    before = resident_of(os.getpid())
    give_back()
    assert before - resident_of(os.getpid()) > 2**25


def test_bad_input_is_refused_before_any_work(llm, text):
    with pytest.raises(PlanError, match="nosuch"):
        asyncio.run(llm.agenerate(text, PARAMS, plan="nosuch"))
    with pytest.raises(CapacityError, match="max_tokens"):
        asyncio.run(llm.agenerate(text, SamplingParams(max_tokens=1000)))
    with pytest.raises(InputError, match="n=2"):
        llm.astream(text, SamplingParams(n=2, temperature=1.0))  # at the call


def test_everybody_hears_of_an_engine_that_can_neither_go_on_nor_abort(llm, text, monkeypatch):
    engine = llm.engine()
    steps = background.Background(engine)

    def failing(*given):
        raise MemoryError("no memory")

    monkeypatch.setattr(engine, "step", failing)
    monkeypatch.setattr(engine, "abort", failing)
    monkeypatch.setattr("threading.excepthook", lambda told: None)

    async def heard():
        answers = steps.answers(llm.check([text[:20], text[5:30]], PARAMS))
        with pytest.raises(MemoryError):
            await asyncio.wait_for(anext(answers), 5)

    asyncio.run(heard())


def test_a_program_that_leaves_a_request_in_a_step_ends_in_order():
    code = """
import asyncio
from tiny import tiny_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM

llm = LLM(tiny_model(), tokenizer=byte_tokenizer(), prefill_chunk=16384)

async def main():
    try:
        await asyncio.wait_for(llm.agenerate([[5] * 16384]), 0.3)
    except TimeoutError:
        print("left")

asyncio.run(main())
"""
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=found, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr
