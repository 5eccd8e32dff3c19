"""What a process gets that was forked from one with a model: an error, rather than a signal or a wait for ever."""

import pytest

import forked
from winnow.kernels.launch import numba_missing

SCRIPT = """
import asyncio, os, signal, threading
from tiny import tiny_model
from winnow import LLM, SamplingParams
from winnow.errors import ModelError

llm = LLM(tiny_model(), prefill_chunk=8)
session = llm.session(max_tokens=9)
session.feed([5] * 12)
params = SamplingParams(max_tokens=2, ignore_eos=True)
asyncio.run(llm.agenerate([[5] * 12], params))

uses = {
    "generate": lambda: llm.generate([[5] * 12], params),
    "agenerate": lambda: asyncio.run(llm.agenerate([[5] * 12], params)),
    "feed": lambda: session.feed([7]),
    "logits": lambda: llm.logits([5] * 12),
    "load": lambda: LLM(tiny_model()),
}
held, over = threading.Event(), threading.Event()


def step():
    with llm.decoder.driving():
        held.set()
        over.wait()


stepping = threading.Thread(target=step)
stepping.start()
held.wait()
child = os.fork()  # in the midst of another thread's step
if not child:
    signal.alarm(50)  # rather than for ever
    for name, use in uses.items():
        try:
            use()
        except ModelError as error:
            print(name, str(error).partition(";")[0], flush=True)
    os._exit(0)
over.set()
stepping.join()
_, status = os.waitpid(child, 0)
assert status == 0, status
session.feed([7])
print("the parent goes on")
"""


@pytest.mark.skipif(numba_missing() is not None, reason="the threads are those of kernels")
def test_a_forked_process_is_told_so():
    [ended] = forked.run([["-c", SCRIPT]])
    assert ended.code == 0, ended.err
    *errors, last = ended.out.splitlines()
    assert [line.split()[0] for line in errors] == ["generate", "agenerate", "feed", "logits", "load"]
    assert all("was forked from one in which a model had been loaded" in line for line in errors)
    assert last == "the parent goes on"
