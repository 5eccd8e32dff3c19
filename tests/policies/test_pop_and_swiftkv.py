"""POP and SwiftKV against the stock layers; the projections of every family against what its layers compute."""

import pytest
import torch

from covering import covered
from driving import decode, prefill
from models import CONFIGS, WINDOW, small_model
from winnow import LLM, SamplingParams
from winnow.engine.services import admit
from winnow.errors import PlanError
from winnow.policies.compute.gates import Projection
from winnow.policies.compute.pop import Pop
from winnow.policies.compute.swiftkv import SwiftKV
from winnow.runtime.observer import Observer
from winnow.runtime.projection import heads_of

LAYERS, PROMPT, KV_HEADS = 4, 31, 2


@pytest.fixture
def llm():
    return LLM(small_model("llama"), prefill_chunk=7)


class Inputs(Observer):
    """The hidden states with which the rows of a sequence enter each layer."""

    def __init__(self):
        self.rows = {}

    def entered(self, layer, segment, hidden):
        self.rows.setdefault(layer, []).append(hidden)


@pytest.mark.parametrize("name", CONFIGS)
@torch.inference_mode()
def test_projections_equal_what_the_layers_compute(name, text):
    """Keys before rotation cannot be read from a cache, so those of position 0, where rotation does nothing."""
    llm = LLM(small_model(name), prefill_chunk=64)
    state, _ = admit(llm.decoder, None, llm.plan, text[:PROMPT], 1, 64)
    state.observer = inputs = Inputs()
    prefill(llm.decoder, state, text[:7], 64)  # within the shortest window
    for layer in range(LAYERS):
        keys, values, positions = state.caches[layer].live()
        mine = heads_of(llm.decoder, Projection((layer,), layer, layer, False)).units(inputs.rows[layer][0])
        assert positions.tolist() == list(range(7))
        torch.testing.assert_close(mine[1], values, rtol=0, atol=1e-5)
        # Rotation keeps the length of a pair of numbers; some families scale all keys alike besides.
        sizes = keys.norm(dim=-1) / mine[0].norm(dim=-1)
        torch.testing.assert_close(sizes, torch.full_like(sizes, float(sizes[0, 0])), rtol=1e-4, atol=0)
        torch.testing.assert_close(mine[0][:, 0] * sizes[0, 0], keys[:, 0], rtol=0, atol=1e-5)


@torch.inference_mode()
def reference(model, ids, prompt, cutoff, share):
    """Stock modules token by token: full attention below; above, keys and values of the prompt from x^K.

    share 0 is POP, from 1 on SwiftKV. Returns logits after the prompt and after each token that follows.
    """
    body, config = model.model, model.config
    heads, width = config.num_key_value_heads, config.head_dim or config.hidden_size // config.num_attention_heads
    positions = torch.arange(len(ids))
    hidden = body.embed_tokens(torch.tensor([ids]))
    cos, sin = body.rotary_emb(hidden, positions[None])
    causal = torch.zeros(len(ids), len(ids)).masked_fill(positions[None] > positions[:, None], float("-inf"))
    for block in body.layers[:cutoff]:
        hidden = block(hidden, attention_mask=causal[None, None], position_embeddings=(cos, sin))
    cut, going = hidden, slice(prompt - 1, None)
    hidden = hidden[:, going]

    def rotated(x):
        half = x.shape[-1] // 2
        return x * cos[:, None] + torch.cat((-x[..., half:], x[..., :half]), -1) * sin[:, None]

    def split(x):
        return x.unflatten(-1, (-1, width)).transpose(1, 2)

    for index in range(cutoff, len(body.layers)):
        block, attention = body.layers[index], body.layers[index].self_attn
        first = index - (index - cutoff) % share if share else index
        group = body.layers[first : first + (share or 1)]
        norm = (body.layers[cutoff] if share else block).input_layernorm
        keys = sum(split(each.self_attn.k_proj(norm(cut))) for each in group) / len(group)
        values = sum(split(each.self_attn.v_proj(norm(cut))) for each in group) / len(group)
        inputs = block.input_layernorm(hidden)
        if not share:
            keys[:, :, going], values[:, :, going] = split(attention.k_proj(inputs)), split(attention.v_proj(inputs))
        queries = torch.zeros(1, config.num_attention_heads, len(ids), width)
        queries[:, :, going] = split(attention.q_proj(inputs))
        keys, values = (x.repeat_interleave(config.num_attention_heads // heads, 1) for x in (rotated(keys), values))
        weights = (rotated(queries) @ keys.transpose(2, 3) / width**0.5 + causal).softmax(-1)
        out = (weights @ values).transpose(1, 2).flatten(2)[:, going]
        hidden = hidden + attention.o_proj(out)
        hidden = hidden + block.mlp(block.post_attention_layernorm(hidden))
    return model.lm_head(body.norm(hidden))[0]


@covered(cutoff=[1, 2, 3], share=[0, 1, 2, 3], chunk=[1, 7, 64])
def test_equals_the_stock_modules(llm, text, cutoff, share, chunk):
    llm.prefill_chunk = chunk
    plan = f"swiftkv(cutoff={cutoff}, share={share})" if share else f"pop(cutoff={cutoff})"
    expected = reference(llm.model, text, PROMPT, cutoff, share)
    torch.testing.assert_close(llm.logits(text, decode_from=PROMPT, plan=plan), expected, rtol=0, atol=1e-5)


@covered(prompt=[1, 2, 20, 31], share=[0, 1, 2, 3])
def test_rows_units_and_bytes_in_closed_form(llm, text, prompt, share):
    new, cutoff = 6, 1
    plan = f"swiftkv(cutoff={cutoff}, share={share})" if share else f"pop(cutoff={cutoff})"
    [out] = llm.generate([text[:prompt]], SamplingParams(max_tokens=new, ignore_eos=True), plan=plan)
    stats, shape = out.stats, llm.decoder.shape
    assert stats.rows_computed == cutoff * prompt + (LAYERS - cutoff) + LAYERS * (new - 1)
    assert stats.units_read == KV_HEADS * LAYERS * sum(prompt + t for t in range(1, new))
    held = LAYERS if share < 2 else cutoff + -(-(LAYERS - cutoff) // share)
    assert stats.cache_bytes == KV_HEADS * shape.unit_bytes * held * (prompt + new - 1)
    assert stats.allocated_bytes >= stats.cache_bytes


@covered(plan=["pop(cutoff=2)", "swiftkv(cutoff=2, share=1)", "swiftkv(cutoff=1, share=3)"], chunk=[1, 5, 64])
def test_with_a_cache_that_evicts(llm, text, plan, chunk):
    """Streaming beside them: the chunk size changes nothing, and a bound that is never reached changes nothing."""
    small, large = f"{plan} + streaming(sink=2, recent=6)", f"{plan} + streaming(sink=2, recent=100)"
    expected = llm.logits(text, decode_from=PROMPT, plan=small)
    llm.prefill_chunk = chunk
    torch.testing.assert_close(llm.logits(text, decode_from=PROMPT, plan=small), expected, rtol=0, atol=1e-5)
    whole = llm.logits(text, decode_from=PROMPT, plan=plan)
    torch.testing.assert_close(llm.logits(text, decode_from=PROMPT, plan=large), whole, rtol=0, atol=1e-5)
    assert (whole - expected).abs().max() > 1e-3


def test_layers_that_share_a_cache_see_the_same_window(text):
    """The last of them evicts: none loses a unit that its window holds."""
    llm = LLM(small_model("mistral"), prefill_chunk=7)
    [out] = llm.generate(
        [text[:PROMPT]], SamplingParams(max_tokens=5, ignore_eos=True), plan="swiftkv(cutoff=1, share=3)"
    )
    assert out.stats.units_read == KV_HEADS * LAYERS * 4 * WINDOW


def test_forks_share_caches_as_their_origin_does(llm, text):
    state, seen = admit(llm.decoder, None, llm.plan.parse("swiftkv(cutoff=1, share=3)"), text[:PROMPT], 20, 7)
    prefill(llm.decoder, state, seen, 7)
    twin = state.fork()
    expected = [decode(llm.decoder, [(state, token)])[0] for token in text[PROMPT:]]
    got = [decode(llm.decoder, [(twin, token)])[0] for token in text[PROMPT:]]
    torch.testing.assert_close(torch.stack(got), torch.stack(expected), rtol=0, atol=1e-6)
    assert len(twin.own_caches()) == len(state.own_caches()) == 2


@covered(name=CONFIGS, keep=["", " + streaming(sink=2, recent=9)"])
def test_the_last_layer_alone_is_what_it_would_have_computed(name, keep, text):
    """Its projections of what enters it are its own units, so nothing changes."""
    llm, text = LLM(small_model(name), prefill_chunk=7), text[: PROMPT + 6]
    expected = llm.logits(text, decode_from=PROMPT, plan=keep.removeprefix(" + ") or "full")
    for plan in (f"pop(cutoff={LAYERS - 1})", f"swiftkv(cutoff={LAYERS - 1})"):
        got = llm.logits(text, decode_from=PROMPT, plan=plan + keep)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


def test_shares_and_counts_of_layers_are_the_same_policy(llm):
    shape = llm.decoder.shape
    assert Pop(0.5).resolved(shape) == Pop(2) == Pop(2).resolved(shape)
    assert SwiftKV(0.75, share=2).resolved(shape) == SwiftKV(3, share=2)


@pytest.mark.parametrize("name", ["gemma2", "smollm3"])
def test_layers_with_different_windows_or_rotations_share_no_cache(name, text):
    llm = LLM(small_model(name))
    with pytest.raises(PlanError, match="use share=1"):
        llm.generate([text], plan="swiftkv(cutoff=2, share=2)")


def test_means_of_no_more_teachers_stay_than_a_plan_has(llm, text):
    """Clients may ask for any cutoff and share; what is averaged for each goes when it is too many."""
    first = llm.generate([text[:PROMPT]], SamplingParams(max_tokens=2, logprobs=0), plan="swiftkv(cutoff=1, share=2)")
    for cutoff, share in ((2, 2), (1, 3), (1, 2)):
        again = llm.generate(
            [text[:PROMPT]], SamplingParams(max_tokens=2, logprobs=0), plan=f"swiftkv(cutoff={cutoff}, share={share})"
        )
        assert 1 <= len(llm.decoder.derived["means"]) <= LAYERS // 2
    assert again[0].logprobs == first[0].logprobs
