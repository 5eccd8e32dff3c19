"""The workers against Winnow: the same tokens, the same units, bytes that the tensors have."""

import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from benchmarks.peers_steps import measure_steps, summarise_steps
from benchmarks.shapes import SHAPES, random_model

import forked
from tiny import save_tiny_model, tiny_model
from winnow import LLM, SamplingParams
from winnow.errors import InputError, UnsupportedModelError
from winnow.evaluation.compare import document_case
from winnow.evaluation.peers.base import WORKERS
from winnow.evaluation.peers.compare import Workers
from winnow.evaluation.peers.gguf_file import check_gguf, interleaved
from winnow.evaluation.peers.registry import parse_pythons, peer_arms, plan_arms
from winnow.evaluation.peers.weights import weights_of
from winnow.plan import Plan

sys.path.insert(0, str(WORKERS))
from hf_worker import Transformers
from llama_state import Layout, filled_state, read_layout
from winnow_worker import Winnow
from wire import Refused
from wire import answer as timed_answer

# Where peers are, as for --peer-python: WINNOW_TEST_PEERS="kvpress=PATH llama.cpp=PATH"
PYTHONS = parse_pythons(os.environ.get("WINNOW_TEST_PEERS", "").split())
IDS = [5 + place * 37 % 200 for place in range(60)]
UNIT = 2 * 8 * 4  # bytes of a unit of the tiny model: key and value, 8 float32 each


def needs(family: str, package: str) -> pytest.MarkDecorator:
    way_out = f"pip install {package} into an environment and set WINNOW_TEST_PEERS={family}=DIR/bin/python"
    return pytest.mark.skipif(family not in PYTHONS, reason=f"{family} is not named: {way_out}")


needs_llama, needs_kvpress = needs("llama.cpp", "llama-cpp-python"), needs("kvpress", "kvpress")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


def engine(made, directory, **options):
    made.check(threads=torch.get_num_threads(), device="cpu", **options)
    made.load(model=str(directory), dtype="float32", context=128)
    return made


def test_stock_and_winnow_answer_alike_and_count_the_same_bytes(directory):
    expected = LLM(tiny_model()).generate([IDS], SamplingParams(max_tokens=6, ignore_eos=True))[0]
    stock = engine(Transformers(), directory, cache="dynamic", parameters={})
    mine = engine(Winnow(), directory, plan="full", prefill_chunk=16)
    for one in (stock, mine):
        told = timed_answer(one, IDS, 6, [])
        assert told["token_ids"] == expected.token_ids
        assert (told["cache_bytes"], told["kept_units"]) == (expected.stats.cache_bytes, 2 * 2 * 65)
        assert 0 < told["ttft_s"] < told["total_s"]
    stop = expected.token_ids[2]
    assert timed_answer(stock, IDS, 6, [stop])["token_ids"] == expected.token_ids[: expected.token_ids.index(stop) + 1]


def test_a_policy_with_a_budget_is_filled_with_its_budget(directory):
    mine = engine(Winnow(), directory, plan="snapkv(budget=20, window=4, local=0)", prefill_chunk=16)
    mine.fill(100, np.zeros((2, 2, 100, 8), np.float32), steps=2)
    assert mine.held()[1] == 2 * 2 * 20
    mine.step(1)
    assert mine.held()[1] == 2 * 2 * 21


def test_a_plan_that_the_model_cannot_follow_is_refused(directory):
    with pytest.raises(Refused, match="layer"):
        engine(Winnow(), directory, plan="tidal(layers=[7, 9])", prefill_chunk=16)


@pytest.mark.skipif(find_spec("optimum") is None, reason="optimum-quanto is not installed")
def test_a_quantised_cache_is_counted_by_what_it_holds(directory):
    options = {"cache": "quantized", "parameters": {"nbits": 4, "residual_length": 16, "q_group_size": 32}}
    made = engine(Transformers(), directory, **options)
    told = timed_answer(made, IDS * 4, 2, [])
    assert made.backend == "quanto"
    assert told["kept_units"] == 2 * 2 * 241
    assert 241 * 4 * UNIT / 8 < told["cache_bytes"] < 241 * 4 * UNIT / 2


def test_offloading_needs_a_gpu():
    with pytest.raises(Refused, match="--device cuda"):
        Transformers().check(threads=1, device="cpu", cache="offloaded", parameters={})


def test_neighbours_rotate_as_halves_did():
    """Rows permuted for llama.cpp, rotated as neighbours, are the rotated rows permuted."""
    heads, head_dim = 3, 8
    q = torch.randn(heads * head_dim)
    angle = torch.randn(head_dim // 2)

    def turned(even, odd):
        return even * angle.cos() - odd * angle.sin(), odd * angle.cos() + even * angle.sin()

    halves = q.view(heads, 2, head_dim // 2)
    expected = interleaved(torch.stack(turned(halves[:, 0], halves[:, 1]), 1).flatten(), heads)
    pairs = interleaved(q, heads).view(heads, head_dim // 2, 2)
    torch.testing.assert_close(torch.stack(turned(pairs[..., 0], pairs[..., 1]), -1).flatten(), expected)


def test_what_is_not_converted_is_refused(monkeypatch):
    monkeypatch.setattr("winnow.evaluation.peers.gguf_file.find_spec", lambda name: True)
    config = tiny_model().config
    check_gguf(config)
    config.rope_parameters = {"rope_type": "yarn"}
    with pytest.raises(UnsupportedModelError, match="rope_type='yarn'"):
        check_gguf(config)
    config.model_type = "gemma3"
    with pytest.raises(UnsupportedModelError, match="gemma3"):
        check_gguf(config)


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
from llama_worker import LlamaCpp

cells = 40
for flash in (False, True):
    llama = LlamaCpp()
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


@needs_llama
@needs_kvpress
def test_real_peers_answer_as_full_attention_does_and_hold_what_they_say():
    llm = LLM(tiny_model())
    arms = peer_arms(["llama.cpp", "llama.cpp:flash", "kvpress:KnormPress(0.0)", "kvpress:KnormPress(0.5)"], PYTHONS)
    expected = llm.generate([IDS], SamplingParams(max_tokens=4))[0]
    with weights_of(llm, arms) as weights, Workers(arms, threads=1, device="cpu") as workers:
        workers.load(weights, 128)
        told = {each.arm: each for each in workers.answer(llm, [document_case(IDS, "", 4)])}
    assert [each.token_ids for each in list(told.values())[:3]] == [tuple(expected.token_ids)] * 3
    assert told["kvpress:KnormPress(0.0)"].cache_bytes == expected.stats.cache_bytes
    assert told["kvpress:KnormPress(0.5)"].kept_units == 2 * 2 * (
        30 + len(told["kvpress:KnormPress(0.5)"].token_ids) - 1
    )


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
            with Workers([arm], threads=1, device="cpu") as workers:
                workers.load(weights, len(IDS) + 1)
                for fed in (False, True):
                    workers.require(arm.label, "logits", ids=IDS, out=str(tmp_path / "logits.npy"), fed=fed)
                    found = torch.from_numpy(np.load(tmp_path / "logits.npy")).log_softmax(-1)
                    kl = (expected.exp() * (expected - found)).sum(-1)
                    away[arm.label, fed] = kl.mean().item()
                told = workers.require(arm.label, "follow", ids=IDS, prompt=40)
            assert (len(told["seconds"]), told["prefill_s"] > 0) == (20, True)
    for (label, fed), kl in away.items():
        assert kl < {"file": 1e-4, "bf16": 1e-2, "q4_0": 1}[label.partition(":")[2].partition("(")[0]], (label, fed)
    assert away["llama.cpp:q4_0", False] > 10 * away["llama.cpp:bf16", False]  # it is another file


@needs_llama
def test_what_llama_cpp_cannot_convert_is_one_line(tmp_path):
    llm = LLM(tiny_model())
    llm.source = tmp_path / "damaged.gguf"
    llm.source.write_bytes(b"GGUF" + bytes(20))
    arms = peer_arms(["llama.cpp:q4_0"], PYTHONS)
    with pytest.raises(InputError, match=r"cannot make q4_0 of damaged\.gguf"), weights_of(llm, arms):
        pass


def test_winnows_arm_and_the_peers_of_rounded_weights_load_what_they_were_rounded_from(directory):
    """int4 is rounded again by the arm, a process that imports everything itself; others get the floats."""
    llm = LLM(str(directory), weights="int4")
    [mine], [stock] = plan_arms([Plan()], 16, "int4"), peer_arms(["hf"], {"hf": forked.python()})
    with weights_of(llm, [mine, stock]) as weights, Workers([mine, stock], threads=1, device="cpu") as workers:
        workers.load(weights, 80)
        told = {each.arm: each.token_ids for each in workers.answer(llm, [document_case(IDS, "", 6)])}
    params = SamplingParams(max_tokens=6)
    assert told["full"] == tuple(llm.generate([IDS], params)[0].token_ids)
    assert told["hf"] == tuple(LLM(str(directory)).generate([IDS], params)[0].token_ids)
    assert told["full"] != told["hf"]
