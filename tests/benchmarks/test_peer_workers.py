"""Workers that are asked for more than answers: caches filled to order, states rebuilt, the same logits."""

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from benchmarks.peer_workers import WORKERS, asked_more
from benchmarks.peers_steps import measure_steps, summarise_steps
from benchmarks.shapes import SHAPES, random_model

from peer_engines import IDS, PYTHONS, engine, needs_kvpress, needs_llama
from tiny import save_tiny_model, tiny_model
from winnow import LLM
from winnow.evaluation.peers.compare import Workers
from winnow.evaluation.peers.registry import peer_arms, plan_arms
from winnow.evaluation.peers.weights import weights_of
from winnow.plan import Plan

sys.path.insert(0, str(WORKERS))
from llama_state import Layout, filled_state, read_layout
from timed_winnow_worker import Timed
from wire import Refused


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


def test_a_policy_with_a_budget_is_filled_with_its_budget(directory):
    mine = engine(Timed(), directory, plan="snapkv(budget=20, window=4, local=0)", prefill_chunk=16)
    mine.fill(100, np.zeros((2, 2, 100, 8), np.float32), steps=2)
    assert mine.held()[1] == 2 * 2 * 20
    mine.step(1)
    assert mine.held()[1] == 2 * 2 * 21


@pytest.mark.parametrize("transposed", [False, True])
def test_a_state_says_what_it_was_made_of(transposed):
    layout = Layout(magic=9, sequence=0, transposed=transposed, layers=3, row=16)
    one = filled_state(layout, [np.zeros((2, 1, 16), np.float16)] * 3)
    assert read_layout(one.tobytes()) == layout
    with pytest.raises(Refused, match="another way"):
        read_layout(one.tobytes() + b"\0")


REBUILD = """
import struct, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from llama_state import filled_state, read_layout
from timed_llama_worker import Timed

cells = 40
for flash in (False, True):
    llama = Timed()
    llama.check(threads=1, device="cpu", flash=flash)
    llama.load(model=sys.argv[2], dtype="float32", context=64)
    llama.start([1], 0)
    layout = read_layout(llama.state())
    llama.start([3 + place * 7 % 90 for place in range(cells)], 0)
    state = llama.state()
    expected = llama.step(5)
    size, place, layers = 2 * layout.row * cells, 16 + 12 * cells + 8, []
    for _ in range(layout.layers):
        place += 12
        layers.append(np.frombuffer(state, np.float16, size // 2, place).reshape(cells, layout.row))
        place += size
    for layer, keys in enumerate(layers):
        place += 12
        values = np.frombuffer(state, np.float16, size // 2, place)
        values = values.reshape(layout.row, cells).T if layout.transposed else values.reshape(cells, layout.row)
        layers[layer] = np.stack([keys, values])
        place += size
    made = filled_state(layout, layers)
    assert place == len(state) and made.tobytes() == state, flash
    llama.start([1, 2, 3], 0)
    llama.restore(made)
    assert np.array_equal(llama.step(5), expected), flash
print("same")
"""


@needs_llama
@pytest.mark.skipif(find_spec("gguf") is None, reason="gguf is not installed")
def test_the_state_of_a_real_prefill_is_rebuilt_to_the_byte():
    arms = peer_arms(["llama.cpp"], PYTHONS)
    with weights_of(LLM(tiny_model()), arms) as weights:
        command = [PYTHONS["llama.cpp"], "-c", REBUILD, str(WORKERS), weights.of(arms[0])]
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.strip() == "same", done.stderr[-2000:]


def steps(llm: LLM, peers: list[str], monkeypatch) -> list[dict]:
    """Records of full attention and of `peers` after 200 cached tokens."""
    arms = [*plan_arms([Plan()], 512), *peer_arms(peers, PYTHONS)]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    with weights_of(llm, arms) as weights:
        found = measure_steps(weights, arms, llm.decoder.shape, 200, repeats=5, warmup=1, turns=1)
        return summarise_steps(list(found), ["full", "hf"])


@needs_llama
def test_filled_caches_give_the_same_logits(monkeypatch):
    model = random_model(SHAPES["needle-like"], torch.float32, torch.device("cpu"))
    full, hf, llama = steps(LLM(model), ["hf", "llama.cpp"], monkeypatch)
    assert hf["off"] < 1e-5
    assert llama["off"] < 5e-3  # its units are in float16
    assert full["kept_units"] == hf["kept_units"] == 8 * 2 * (200 + 7)
    assert len(full["seconds"]) == 5


@needs_kvpress
def test_a_press_is_filled_with_what_it_would_keep(monkeypatch):
    model = random_model(SHAPES["needle-like"], torch.float32, torch.device("cpu"))
    *_, press = steps(LLM(model), ["kvpress:KnormPress(0.9)"], monkeypatch)
    assert press["kept_units"] == 8 * 2 * (19 + 7)


@needs_llama
@pytest.mark.skipif(find_spec("gguf") is None, reason="gguf is not installed")
def test_llama_cpp_makes_its_formats_and_tells_its_logits(tmp_path):
    llm = LLM(tiny_model())
    arms = peer_arms(["llama.cpp"], PYTHONS, on_file=True)
    expected = llm.logits(IDS).log_softmax(-1)
    away = {}
    with weights_of(llm, arms) as weights:
        for arm in arms:
            with Workers([asked_more(arm)], threads=1, device="cpu") as workers:
                workers.load(weights, len(IDS) + 1)
                for fed in (False, True):
                    prompt = 1 if fed else None
                    workers.require(arm.label, "logits", ids=IDS, out=str(tmp_path / "logits.npy"), prompt=prompt)
                    found = torch.from_numpy(np.load(tmp_path / "logits.npy")).log_softmax(-1)
                    kl = (expected.exp() * (expected - found)).sum(-1)
                    away[arm.label, fed] = kl.mean().item()
                told = workers.require(arm.label, "follow", ids=IDS, prompt=40)
            assert (len(told["seconds"]), told["prefill_s"] > 0) == (20, True)
    for (label, fed), kl in away.items():
        assert kl < {"file": 1e-4, "bf16": 1e-2, "q4_0": 1}[label.partition(":")[2].partition("(")[0]], (label, fed)
    assert away["llama.cpp:q4_0", False] > 10 * away["llama.cpp:bf16", False]  # it is another file


@needs_llama
@pytest.mark.skipif(find_spec("gguf") is None, reason="gguf is not installed")
def test_llama_cpp_holds_units_in_as_many_bits_as_it_is_told(tmp_path):
    """Its blocks of 32 share a scale of 16 bits."""
    llm, held = LLM(random_model(SHAPES["needle-like"], torch.float32, torch.device("cpu"))), {}
    arms = peer_arms([f"llama.cpp:file(flash=True, cache='{cache}')" for cache in ("f16", "q8_0", "q4_0")], PYTHONS)
    with weights_of(llm, arms) as weights:
        for arm in arms:
            with Workers([asked_more(arm)], threads=1, device="cpu") as workers:
                workers.load(weights, len(IDS) + 1)
                told = workers.require(arm.label, "logits", ids=IDS, out=str(tmp_path / "logits.npy"), prompt=40)
                held[arm.options["cache"]] = told["cache_bytes"]
            assert len(np.load(tmp_path / "logits.npy")) == len(IDS) - 40 + 1
    assert held["q4_0"] < held["q8_0"] < held["f16"]
