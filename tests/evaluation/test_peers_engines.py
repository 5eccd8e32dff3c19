"""The workers against Winnow: the same tokens, the same units, bytes that the tensors have."""

import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from gguf import GGUFReader

import forked
from peer_engines import IDS, PYTHONS, engine, needs_kvpress, needs_llama
from tiny import save_tiny_model, tiny_model
from winnow import LLM, SamplingParams
from winnow.errors import InputError, UnsupportedModelError
from winnow.evaluation.compare import document_case
from winnow.evaluation.peers.base import WORKERS
from winnow.evaluation.peers.compare import Workers
from winnow.evaluation.peers.gguf_file import check_gguf, interleaved, write_gguf
from winnow.evaluation.peers.registry import peer_arms, plan_arms
from winnow.evaluation.peers.weights import weights_of
from winnow.plan import Plan

sys.path.insert(0, str(WORKERS))
from hf_worker import Transformers
from winnow_worker import Winnow
from wire import Refused
from wire import answer as timed_answer

UNIT = 2 * 8 * 4  # bytes of a unit of the tiny model: key and value, 8 float32 each


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


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


def test_a_file_has_every_tensor_by_its_name_in_gguf(tmp_path):
    model = tiny_model()
    write_gguf(model, tmp_path / "model.gguf")
    found = {tensor.name: tensor.data for tensor in GGUFReader(tmp_path / "model.gguf").tensors}
    parts = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
    in_layers = {f"blk.{layer}.{part}.weight" for layer in range(2) for part in parts}
    top = {"token_embd.weight", "output_norm.weight"} | (
        set() if model.config.tie_word_embeddings else {"output.weight"}
    )
    assert set(found) == in_layers | top
    layer = model.model.layers[1]
    heads = model.config.num_attention_heads
    for name, expected in (
        ("attn_q", interleaved(layer.self_attn.q_proj.weight, heads)),
        ("attn_v", layer.self_attn.v_proj.weight),
        ("ffn_norm", layer.post_attention_layernorm.weight),
    ):
        np.testing.assert_array_equal(found[f"blk.1.{name}.weight"], expected.detach().numpy())


def test_what_is_not_converted_is_refused():
    config = tiny_model().config
    check_gguf(config)
    config.rope_parameters = {"rope_type": "yarn"}
    with pytest.raises(UnsupportedModelError, match="rope_type='yarn'"):
        check_gguf(config)
    config.model_type = "gemma3"
    with pytest.raises(UnsupportedModelError, match="gemma3"):
        check_gguf(config)


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
