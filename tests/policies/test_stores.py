"""Stores: what later rows read is what a restatement makes of the units of the same plan without a store."""

import math

import pytest
import torch
from transformers import Phi3Config
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from models import SMALL, stock_logits
from trials import TIPPED, small_llm
from winnow import Plan, SamplingParams
from winnow.errors import PlanError
from winnow.kernels.quantize import Form, dequantize, hadamard, quantize
from winnow.kernels.quantize.quanto import quanto_dequantize, quanto_quantize
from winnow.policies.store.hf_quantized import HFQuantized
from winnow.runtime.rotary import LayerRope, Rotary
from winnow.runtime.sequence import Sequence

PROMPT, GROUP = 44, 16
KEPT = "locret(budget=28, chunk=6, local=4"  # 32 units at the end of the prompt
CHANGING = [
    *(("llama", base) for base in ("full", f"{KEPT})", "speed(cutoff=2)", "swiftkv(cutoff=1, share=2)", "lazyllm")),
    *(("llama", base) for base in ("pop(cutoff=2)", "streaming(sink=2, recent=9)", "static_prune(layers=2)")),
    ("llama", "fastkv(keep=0.75, layer=2, window=4, kernel=1)"),
    ("llama", "tova(budget=20, decode_chunk=None)"),
    ("gemma3", "full"),
    ("gemma3", "snapkv(budget=24, window=8)"),
]
BASES = ("full", f"{KEPT})", f"{KEPT}, positions='original')", "speed(cutoff=2)")


def matrix(size):
    """Sylvester's construction."""
    found = torch.ones(1, 1)
    while len(found) < size:
        found = torch.cat((torch.cat((found, found), 1), torch.cat((found, -found), 1)))
    return found / math.sqrt(size)


def by_group(x, dim, levels):
    """KIVI's formula for groups of 16 along a dimension."""
    cut = x.unflatten(dim, (-1, GROUP))
    low = cut.amin(dim + 1, keepdim=True).half().float()
    scale = ((cut.amax(dim + 1, keepdim=True) - low) / levels).half().float()
    codes = ((cut - low) / torch.where(scale == 0, 1.0, scale)).round().clamp(0, levels)
    return (low + codes * scale).flatten(dim, dim + 1)


def turned(llm, keys, places, sign):
    """Keys [kv_heads, units, head_dim] of Llama's rotation, one way or the other."""
    half = keys.shape[-1] // 2
    angles = places[..., None].float() * 10000.0 ** (-torch.arange(half) / half)
    pairs = torch.complex(keys[..., :half], keys[..., half:]) * torch.polar(torch.ones_like(angles), sign * angles)
    return torch.cat((pairs.real, pairs.imag), -1)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("pre_rope", [False, True])
@pytest.mark.parametrize("transforms", [False, True])
@pytest.mark.parametrize(("bits", "axis", "value_bits"), [(2, "token", None), (4, "channel", None), (8, "channel", 2)])
def test_later_rows_read_what_codes_say_of_the_units_that_stay(
    bits, axis, value_bits, transforms, pre_rope, base, text
):
    """Heads of `locret` have scored units, and the others are gone, before codes are made."""
    llm, levels = small_llm("llama"), 2**bits - 1
    store = f"quantized(bits={bits}, group={GROUP}, keys='{axis}', residual=0, hadamard={transforms}, "
    store += f"value_bits={value_bits}, "
    plan = store + f"pre_rope={pre_rope})" + ("" if base == "full" else f" + {base}")
    with llm.session(plan=base, max_tokens=9) as session, llm.session(plan=plan, max_tokens=9) as stored:
        for each in (session, stored):
            each.feed(text[:PROMPT])
        for cache, twin in zip(session.state.caches, stored.state.caches, strict=True):
            assert cache.rotated
            count = cache.length // GROUP * GROUP
            assert twin.memory.offset == count
            places = torch.arange(count) if cache.compact else cache.positions[..., :count]
            keys, values = cache.slab.keys[:, :count], cache.slab.values[:, :count]
            changed = turned(llm, keys, places, -1) if pre_rope else keys
            changed = changed @ matrix(16) if transforms else changed
            changed = by_group(changed, 1 if axis == "channel" else 2, levels)
            changed = changed @ matrix(16) if transforms else changed
            keys.copy_(turned(llm, changed, places, 1) if pre_rope else changed)
            values.copy_(by_group(values, 2, 2 ** (value_bits or bits) - 1))
        expected, got = (each.feed(text[PROMPT:]) for each in (session, stored))
    assert (expected - stock_logits(llm.model, text)[PROMPT:]).abs().max() > 1e-3
    torch.testing.assert_close(got, expected, rtol=0, atol=TIPPED if pre_rope or transforms else 1e-4)


@pytest.mark.parametrize(
    ("base", "forgets"),
    [("fastkv(keep=0.75, layer=1, window=4, kernel=1)", False), ("static_prune(keep=0.75, layers=1)", True)],
)
def test_a_prompt_that_comes_at_once_is_there_as_it_came_in_one_layer_at_a_time(base, forgets, text, monkeypatch):
    """And in the layer below the gate, where it `forgets` tokens that stop, no longer than until they are evicted: what
    is leaves memory that stays filled until it is replaced."""
    llm, quantize_done = small_llm("llama"), Sequence.quantize_done
    shape, found = llm.decoder.shape, []
    for really in (True, False):
        held = []

        def done(sequence, *told, really=really, held=held):
            held.append(sequence.held()[0])
            if really:
                quantize_done(sequence, *told)

        monkeypatch.setattr(Sequence, "quantize_done", done)
        with llm.session(plan=f"{base} + quantized(group={GROUP}, residual=0)", max_tokens=9) as session:
            first = session.feed(text[:PROMPT])[-1:]
            at_the_last_layer, stay = held[-1], session.state.caches[-1].length
            found.append((torch.cat((first, session.feed(text[PROMPT:]))), at_the_last_layer))
    as_it_came, as_codes = 2 * shape.head_dim * shape.element_bytes, 2 * shape.head_dim * (4 / 8 + 4 / GROUP)
    saved = stay // GROUP * GROUP * (as_it_came - as_codes)
    assert torch.equal(found[0][0], found[1][0])
    assert min(shape.layers - 2, saved) > 0
    first = saved + (PROMPT - stay) * as_it_came if forgets else PROMPT // GROUP * GROUP * (as_it_came - as_codes)
    assert found[1][1] - found[0][1] == ((shape.layers - 2) * saved + first) * shape.kv_heads


@pytest.mark.parametrize(("family", "base"), CHANGING)
@pytest.mark.parametrize(
    "store",
    [
        "quantized(bits=2, group=16, residual=3, chunk=20)",
        "hf_quantized(bits=2, group_size=8, residual_length=7, chunk=12)",
    ],
)
def test_units_become_codes_where_a_chunk_ends_and_not_before_its_rows_are_done(family, base, store, text, monkeypatch):
    """Layer by layer or all together, rows read the same; layers that share a cache wait for the last of them."""
    llm, found = small_llm(family), []
    for really in (True, False):
        if not really:
            monkeypatch.setattr(Sequence, "settles_at", lambda *_: False)
        with llm.session(plan=f"{base} + {store}", max_tokens=9) as session:
            rows = torch.cat((session.feed(text[:PROMPT])[-1:], session.feed(text[PROMPT : PROMPT + 5])))
            found.append((rows, session.held, [cache.memory.offset for cache in session.state.caches]))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]


def test_what_a_chunk_brings_is_there_as_it_came_in_one_layer_at_a_time(text, monkeypatch):
    """The most held at once: the last layer's rows of a chunk beside codes of all that came, but for the residual."""
    llm, chunk, residual = small_llm("llama"), 16, 16
    plan = Plan.parse(f"quantized(group={GROUP}, residual={residual}, chunk={chunk})")
    monkeypatch.setattr(llm, "prefill_chunk", chunk)
    [out] = llm.generate([text[:48]], SamplingParams(max_tokens=1), plan=plan)
    shape = llm.decoder.shape
    as_it_came, as_codes = 2 * shape.head_dim * shape.element_bytes, 2 * shape.head_dim * (4 / 8 + 4 / GROUP)
    each = (48 - residual) * as_codes + residual * as_it_came
    assert out.stats.total_bytes == shape.kv_heads * (shape.layers * each + chunk * (as_it_came - as_codes))


@pytest.mark.parametrize("length", [36, 41, 43])
@pytest.mark.parametrize(
    "base", ["fastkv(keep=0.75, layer=2, window=4, kernel=1)", "static_prune(keep=0.75, layers=2)", "lazyllm"]
)
def test_a_store_that_does_not_change_at_the_end_of_a_prompt_is_waited_for(base, length, text, monkeypatch):
    """Flushes of `hf_quantized` come where they would, so that the first tokens read what has not been flushed."""
    llm, found = small_llm("llama"), []
    plan, ids = f"{base} + hf_quantized(bits=2, group_size=8, residual_length=7, chunk=12)", (text * 2)[: length + 5]
    for done in (Sequence.quantize_done, lambda *_: None):
        monkeypatch.setattr(Sequence, "quantize_done", done)
        with llm.session(plan=plan, max_tokens=9) as session:
            rows = torch.cat((session.feed(ids[:length])[-1:], session.feed(ids[length:])))
            found.append((rows, [cache.memory.offset for cache in session.state.caches]))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize(
    "family", ["llama", "llama-yarn", "phi3-longrope-long", "gpt_oss", "gemma3", "cohere2", "partial"]
)
@pytest.mark.parametrize("heads", [1, 2])
def test_keys_are_turned_back_to_what_they_were(family, heads):
    """With scalings, of a part of a head, or with neighbouring channels in a pair: the family's own rotation."""
    if family == "partial":
        rope = {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.5}
        model = AutoModelForCausalLM.from_config(Phi3Config(**SMALL, head_dim=32, rope_parameters=rope))
        rotary, width = Rotary(model), 32
    else:
        rotary, width = small_llm(family).decoder.rotary, small_llm(family).decoder.shape.head_dim
    keys, places = torch.randn(2, 9, width), torch.randint(0, 400, (heads, 9))
    for kind in rotary.kinds:
        rope = LayerRope(rotary, rotary.choose(300), kind)
        there = rope.turn(keys, places)
        assert not torch.allclose(there, keys, atol=0.1)
        torch.testing.assert_close(rope.turn(there, places, back=True), keys, rtol=0, atol=1e-5)
        for head in range(2):
            tables = rotary.tables(rotary.choose(300), places[head % heads])[kind]
            torch.testing.assert_close(there[head], rotary.rotate(keys[None, head : head + 1], tables)[0, 0])


def test_the_transform_is_sylvesters_and_its_own_inverse():
    x = torch.randn(3, 5, 128)
    torch.testing.assert_close(hadamard(x), x @ matrix(128), rtol=0, atol=1e-5)
    torch.testing.assert_close(hadamard(hadamard(x)), x, rtol=0, atol=1e-5)


def test_an_outlier_channel_costs_a_transformed_key_less():
    """What it is for: of keys by token, one channel's outliers set the scale of all others of their group."""
    torch.manual_seed(0)
    x = torch.randn(2, 64, 64)
    x[..., 5] += 30
    errors = []
    for transforms in (False, True):
        form = Form(4, 32, "token", "token", 64, transforms)
        errors.append((dequantize(*quantize(x, form, "keys"), form, "keys", torch.float32) - x).square().mean())
        same = Form(4, 32, "token", "token", 64)  # values are not transformed
        assert torch.equal(quantize(x, form, "values")[0], quantize(x, same, "values")[0])
    assert errors[1] < errors[0] / 2


def quanto(x, bits, group, zero_point):
    """transformers' `axis=0`: runs of so many values of a contiguous tensor."""
    cut, most = x.reshape(-1, group), 2**bits - 1
    low, high = cut.min(1, keepdim=True).values, cut.max(1, keepdim=True).values
    scale = (high - low) / most
    if zero_point:
        zero = torch.round(-low / scale)
        return (scale * (torch.clamp(torch.round(cut / scale) + zero, 0, most) - zero)).reshape(x.shape)
    return (scale * torch.clamp(torch.round((cut - low) / scale), 0, most) + low).reshape(x.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("zero_point", [False, True])
@pytest.mark.parametrize("bits", [2, 4])
def test_quantos_arithmetic_to_the_bit(bits, zero_point, dtype):
    torch.manual_seed(0)
    x = (torch.randn(3, 40, 64) * 3 + 1).to(dtype)
    coded = quanto_quantize(x, bits, 16, zero_point=zero_point)
    assert torch.equal(quanto_dequantize(coded, bits), quanto(x, bits, 16, zero_point))
    assert coded.codes.nbytes == x.numel() * bits // 8
    assert coded.scales.nbytes + coded.shifts.nbytes == x.numel() // 16 * (
        dtype.itemsize + (zero_point or dtype.itemsize)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bits", [2, 4])
def test_quantos_arithmetic_is_that_of_the_package(bits, dtype):
    cache_utils = pytest.importorskip("transformers.cache_utils")
    pytest.importorskip("optimum.quanto")
    torch.manual_seed(0)
    x = (torch.randn(1, 3, 40, 64) * 3 + 1).to(dtype)
    layer = cache_utils.QuantoQuantizedLayer(nbits=bits)
    expected = layer._dequantize(layer._quantize(x, axis=0))
    assert torch.equal(quanto_dequantize(quanto_quantize(x[0], bits, 64), bits), expected[0])


@pytest.mark.parametrize("zero_point", [False, True])
@pytest.mark.parametrize("bits", [2, 4])
def test_what_is_made_anew_is_the_same_but_for_rounding(bits, zero_point):
    """The least and the largest value of a group are codes themselves."""
    torch.manual_seed(0)
    made = [torch.randn(3, 40, 64) * 3]
    for _ in range(8):
        made.append(quanto_dequantize(quanto_quantize(made[-1], bits, 64, zero_point=zero_point), bits))
    torch.testing.assert_close(made[-1], made[1], rtol=0, atol=1e-5)


def test_equal_values_stay():
    x = torch.full((1, 4, 64), 0.3125)
    assert torch.equal(quanto_dequantize(quanto_quantize(x, 2, 64), 2), x)


def of_transformers(bits, group, residual, zero_point):
    """One of its layers, with the arithmetic from above in place of a package."""
    from transformers.cache_utils import QuantizedLayer

    class Layer(QuantizedLayer):
        def _quantize(self, tensor, axis):
            return quanto(tensor, bits, group, zero_point)

        def _dequantize(self, tensor):
            return tensor

    return Layer(nbits=bits, q_group_size=group, residual_length=residual)


@torch.inference_mode()
def theirs(model, ids, prompt, chunk, layer):
    """Logits of the stock model over caches of such layers, after the prompt, fed in chunks, and each other token."""
    from transformers.cache_utils import Cache

    cache = Cache(layers=[layer() for _ in range(model.config.num_hidden_layers)])
    ends = [*range(chunk, prompt, chunk), *range(prompt, len(ids) + 1)]
    rows, start = [], 0
    for end in ends:
        out = model(torch.tensor([ids[start:end]]), cache=cache, use_cache=True)
        rows.append(out.logits[0, -1])
        start = end
    return torch.stack(rows[-(len(ids) - prompt + 1) :])


@pytest.mark.parametrize(
    ("bits", "chunk", "residual", "zero_point"),
    [
        (4, None, 7, False),
        (2, None, 5, False),
        (4, 12, 7, False),
        (4, 5, 12, False),
        (4, 10, 7, True),
        (2, 31, 3, True),
    ],
)
def test_hf_quantized_is_transformers_cache(bits, chunk, residual, zero_point, text):
    """Its own update of a layer, in the stock model, fed in the same chunks; ours in steps of ten rows."""
    llm, prompt, group = small_llm("llama"), 31, 8
    plan = Plan(
        store=HFQuantized(bits=bits, group_size=group, residual_length=residual, chunk=chunk, zero_point=zero_point)
    )
    got = llm.logits(text, decode_from=prompt, plan=plan)
    expected = theirs(
        llm.model, text, prompt, chunk or prompt, lambda: of_transformers(bits, group, residual, zero_point)
    )
    assert (got - stock_logits(llm.model, text)[prompt - 1 :]).abs().max() > 1e-3
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("bits", [2, 4])
def test_hf_quantized_is_transformers_class_with_its_package(bits, text):
    cache_utils = pytest.importorskip("transformers.cache_utils")
    pytest.importorskip("optimum.quanto")
    llm, plan = small_llm("llama"), f"hf_quantized(bits={bits}, group_size=8, residual_length=9)"
    expected = theirs(
        llm.model, text, 31, 31,
        lambda: cache_utils.QuantoQuantizedLayer(nbits=bits, q_group_size=8, residual_length=9),
    )  # fmt: skip
    torch.testing.assert_close(llm.logits(text, decode_from=31, plan=plan), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("chunk", [None, 3, 5, 7, 10, 64])
@pytest.mark.parametrize("residual", [1, 4, 12])
@pytest.mark.parametrize("prompt", [1, 9, 30])
def test_flushes_are_when_theirs_are(prompt, residual, chunk):
    """Step by step: what has come since the last flush, and the step's own tokens, are enough, or nothing is coded."""
    store = HFQuantized(chunk=chunk, residual_length=residual)
    size, known, held, flushed = chunk or prompt, 0, 0, []
    while known < 80:
        new = min(size, prompt - known) if known < prompt else 1
        known, held = known + new, held + new
        if not flushed or held >= residual:
            flushed.append(known)
            held = 0
    found = [store.next_change(0, prompt)]
    while found[-1] < flushed[-1]:
        found.append(store.next_change(found[-1], prompt))
    assert found == flushed
    for known in range(flushed[-1]):
        assert store.next_change(known, prompt) == next(each for each in flushed if each > known)


def test_bytes_of_hf_quantized_in_closed_form(text):
    """Codes, and a scale and a shift of the model's type for every group; the residual as it came."""
    llm = small_llm("llama")
    plan = "hf_quantized(bits=2, group_size=8, residual_length=16)"
    with llm.session(plan=plan, max_tokens=20) as session:
        session.feed(text[:31])
        shape = llm.decoder.shape
        coded = 2 * 16 * 2 // 8 + 2 * 16 // 8 * (4 + 4)
        heads = shape.layers * shape.kv_heads
        assert session.stats.cache_bytes == heads * 31 * coded
        session.feed(text[31:36])
        assert session.stats.cache_bytes == heads * (31 * coded + 5 * shape.unit_bytes)
        session.feed(text[36:47])
        assert session.stats.cache_bytes == heads * 47 * coded


@pytest.mark.parametrize(
    ("plan", "family", "message"),
    [
        (
            "quantized(group=16, hadamard=True)",
            "mistral-96",
            "hadamard=True takes heads of .* have 96; use hadamard=Fal",
        ),
        ("quantized(group=48, value_group=32)", "llama", "value_group=32 does not divide group=48.*use value_group=16"),
        ("quantized(value_group=8)", "llama", "value_group=8 is no multiple of 16; use 16"),
        ("quantized(value_group=32)", "llama", "value_group=32 does not divide the 16 channels .* use value_group=16"),
        ("quantized(keys='token', value_group=16)", "llama", "^quantized: group=32 does not divide the 16 channels"),
        ("hf_quantized", "llama", "group_size=64 does not divide the 16 channels of a head.*use group_size=16"),
        ("quantized(group=64)", "mistral-96", "group=64 does not divide the 96 channels of a head; use group=32, or"),
        ("hf_quantized(group_size=12)", "llama", "group_size=12 is no multiple of 8"),
        ("quantized(group=16) + h2o(budget=8)", "llama", "h2o evicts .* quantized .*; use h2o with decode_chunk=None"),
        ("hf_quantized(group_size=8) + locret(budget=9, chunk=6, local=4, decode_chunk=5)", "llama", "locret evicts"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(plan, family, message):
    from dataclasses import replace

    shape = small_llm("llama").decoder.shape
    if family == "mistral-96":
        shape = replace(shape, head_dim=96)
    with pytest.raises(PlanError, match=message):
        Plan.parse(plan).validate(shape)
