"""StreamingLLM against an independent token-by-token implementation, and against its closed formulas."""

import pytest
import torch
from torch.nn.functional import softmax
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from covering import covered
from models import small_model
from winnow import LLM, Plan, SamplingParams
from winnow.policies.keep.streaming import Streaming


@torch.inference_mode()
def streaming_llm(model, ids, sink, recent):
    """The paper's algorithm, one token at a time: keys cached unrotated, rope positions = places in the cache."""
    layers, hidden_of = model.model.layers, model.model.embed_tokens
    kept = [([], []) for _ in layers]
    logits = []
    for token in ids:
        hidden = hidden_of(torch.tensor([token]))  # [1, hidden]
        for layer, (keys, values) in zip(layers, kept, strict=True):
            x, attention = layer.input_layernorm(hidden), layer.self_attn
            q, k, v = (
                project(x).view(-1, attention.head_dim)
                for project in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            for cache, new in ((keys, k), (values, v)):
                cache.append(new)
                if len(cache) > sink + recent:
                    del cache[sink]
            count = len(keys)
            cos, sin = model.model.rotary_emb(x[None], torch.arange(count)[None])
            stacked = torch.stack(keys, 1)[None]  # [1, kv_heads, count, head_dim]
            q, _ = apply_rotary_pos_emb(q[None, :, None], stacked, cos[:, -1:], sin[:, -1:])
            _, rotated = apply_rotary_pos_emb(stacked, stacked, cos, sin)
            group = q.shape[1] // rotated.shape[1]
            weights = softmax(q @ rotated.repeat_interleave(group, 1).mT * attention.scaling, -1)
            out = weights @ torch.stack(values, 1)[None].repeat_interleave(group, 1)
            hidden = hidden + attention.o_proj(out.reshape(1, -1))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        logits.append(model.lm_head(model.model.norm(hidden))[0])
    return torch.stack(logits)


@covered((("sink", "recent"), [(4, 12), (0, 10), (3, 1), (10, 30), (4, 100)]), chunk=[1, 5, 16, 64])
def test_equals_the_papers_algorithm_for_any_chunk(text, chunk, sink, recent, device):
    model = small_model("llama", device)
    with torch.device(device):
        expected = streaming_llm(model, text, sink, recent)
    llm = LLM(model, prefill_chunk=chunk)
    got = llm.logits(text, decode_from=30, plan=Plan(keep=Streaming(sink=sink, recent=recent)))
    torch.testing.assert_close(got, expected[29:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("chunk", [4, 16])
def test_bytes_equal_the_closed_formula(text, chunk):
    model = small_model("llama")
    llm = LLM(model, prefill_chunk=chunk)
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    [out] = llm.generate([text], params, plan="streaming(sink=4, recent=12)")
    shape = llm.decoder.shape
    unit = shape.layers * shape.kv_heads * shape.unit_bytes
    assert out.stats.peak_cache_bytes == (4 + 12 + chunk) * unit
    assert out.stats.cache_bytes == (4 + 12) * unit
    assert out.stats.allocated_bytes == (4 + 12 + chunk) * unit
    assert out.stats.units_read == 5 * (4 + 12) * shape.layers * shape.kv_heads
    assert out.stats.units_full == sum(48 + t for t in range(1, 6)) * shape.layers * shape.kv_heads


def test_a_prompt_may_be_longer_than_the_models_positions():
    model = small_model("llama")
    long = list(range(3, 97)) * 8  # 752 tokens, 512 positions
    [out] = LLM(model).generate([long], SamplingParams(max_tokens=3, ignore_eos=True), plan="streaming(4, 64)")
    assert len(out.token_ids) == 3


def test_layers_with_a_smaller_window_keep_it(text):
    """With sink + recent beyond the model's own window everywhere, streaming changes nothing."""
    llm = LLM(small_model("mistral"), prefill_chunk=16)
    got = llm.logits(text, decode_from=20, plan="streaming(sink=2, recent=8)")
    torch.testing.assert_close(got, llm.logits(text)[19:], rtol=0, atol=1e-5)
