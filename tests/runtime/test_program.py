"""Layers taken several at once, against the same layers driven one by one."""

import functools
import importlib
from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import Phi3Config

import models
from covering import marked
from models import SMALL, small_model, stock_logits
from trials import small_llm
from winnow import LLM, SamplingParams
from winnow.kernels.launch import LAYERS, PACKED, numba_missing
from winnow.kernels.layers import tables
from winnow.models.packed import packed_modules, quantize_model
from winnow.policies.read.slowfast_reader import SlowFastReader
from winnow.runtime import description, frame, reading
from winnow.runtime.decoder import Decoder
from winnow.runtime.frame import cut_of
from winnow.runtime.heads import HeadsConfig, RetainingHeads
from winnow.runtime.program import Program

pytestmark = pytest.mark.skipif(numba_missing() is not None, reason="the kernel needs Numba")
PROMPT, CHUNK = 31, 10
TIMES = {"queue_s": 0.0, "ttft_s": 0.0, "total_s": 0.0}
SLOWFAST = "slowfast(budget=7, sink=2, recent=5, trigger='periodic', interval=3)"
PLANS = {  # how many layers of four are taken in a step
    "full": 4,
    "streaming(sink=4, recent=12)": 4,
    "snapkv(budget=12, window=4, local=0)": 4,
    "locret(budget=9, chunk=6, local=4)": 4,
    "sink_recent(sink=2, recent=6)": 4,
    SLOWFAST: 4,
    f"streaming(sink=4, recent=20) + {SLOWFAST}": 0,  # what has left the window since it was selected is looked for
    "speed(cutoff=2)": 4,
    "quest(page=2, budget=6, dense_layers=2)": 4,
    "sketch(budget=9, sink=2, recent=3, lag=4)": 4,
    "tidal(layers=[1], budget=3)": 4,
    "tidal(layers=[0, 2], budget=5)": 4,
    "streaming(sink=3, recent=15) + quest(page=3, budget=9, dense_layers=0)": 4,
    "streaming(sink=3, recent=15) + sketch(budget=7, sink=1, recent=2, lag=3)": 4,
    "streaming(sink=3, recent=15) + tidal(layers=[1], budget=4)": 4,
    "locret(budget=12, chunk=6, local=4) + quest(page=2, budget=6, dense_layers=1)": 4,
    "locret(budget=12, chunk=6, local=4) + sketch(budget=7, sink=0, recent=2, lag=3)": 4,
    "speed(cutoff=2) + quest(page=2, budget=6, dense_layers=0)": 4,
    "h2o(budget=12, chunk=6, local=4)": 4,
    "h2o(budget=12)": 4,
    "scissorhands(budget=12, window=5, local=4, decode_chunk=3)": 4,
    "tova(budget=12, chunk=6, local=4)": 4,
    "keydiff(budget=12, chunk=6, local=4, decode_chunk=3)": 4,
    "expected_attention(budget=12, chunk=6, local=4)": 4,
    "expected_attention(budget=12, chunk=6, local=4, decode_chunk=3)": 0,  # queries are noted layer by layer
    "fastkv(keep=0.4, layer=2)": 4,
    "fastkv(keep=0.4, layer=2, voters=5)": 4,
    "lazyllm(layers=[2], keep=0.5, keep_decode=None)": 2,  # above the gate not all that is there is read
    "lazyllm(layers=[1, 3], keep=0.5, keep_decode=1.0, max_revive=3)": 4,
    "pop(cutoff=2)": 4,
    "quantized(bits=4, group=16, residual=5, chunk=8)": 4,
    "quantized(bits=2, group=16, residual=0, chunk=20)": 4,
    "quantized(bits=8, group=32, keys='token', values='channel', residual=0, chunk=32)": 4,
    "quantized(bits=4, group=16, keys='token', residual=2, chunk=10, hadamard=True)": 4,
    "quantized(bits=4, group=16, residual=2, chunk=10, hadamard=True) + quest(page=2, budget=6, dense_layers=2)": 4,
    "quantized(bits=8, group=16, residual=2, chunk=10, hadamard=True) + tidal(layers=[0, 2], budget=5)": 4,
    "quantized(bits=8, group=16, residual=2, chunk=10, pre_rope=True)": 0,
    "hf_quantized(bits=4, group_size=8)": 0,
    "quantized(bits=4, group=16, residual=2, chunk=10) + sink_recent(sink=2, recent=20)": 4,
    "quantized(bits=4, group=16, residual=2, chunk=10) + quest(page=2, budget=6, dense_layers=2)": 4,
    "quantized(bits=4, group=16, residual=2, chunk=10) + sketch(budget=9, sink=2, recent=3, lag=4)": 4,
    "quantized(bits=8, group=16, residual=2, chunk=10) + tidal(layers=[0, 2], budget=5)": 4,
}


MODELS = {
    "Llama": "llama-9-3",
    "Mistral": "mistral",
    "Qwen2": "qwen2-wide",
    "Qwen3": "qwen3",
    "SmolLM3": "smollm3-sliding-wide",
    "Phi3": "phi3-wide",
    "Gemma2": "gemma2",
    "Gemma3": "gemma3-wide",
    "Olmo2": "olmo2-wide",
    "Granite": "granite-wide",
}
FAMILIES = [MODELS[name] for name in description.KNOWN]  # who claims a family has its model here
each_family = pytest.mark.parametrize("family", FAMILIES)


def fresh_llm(family, dtype=torch.float32, packed=False):
    """Which layers were driven is told of one that nobody has run, and weights are changed of such a one alone."""
    model = small_model(family, dtype=dtype)
    if packed:
        quantize_model(model)
    llm = LLM(model, prefill_chunk=CHUNK)
    llm.decoder.default_heads = RetainingHeads.random(HeadsConfig.of(model, llm.decoder.shape, width=8), seed=1)
    return llm


llm_of = functools.cache(fresh_llm)  # tests share it, and put back what they change


def driven(llm, call):
    """What a call gives where every layer is driven."""
    kept = llm.decoder.program.rows
    llm.decoder.program.rows = 0
    try:
        return call()
    finally:
        llm.decoder.program.rows = kept


def fed(llm, prompt, rest, plan=None, *, take):
    """Logits [1 + rest, vocab] of a prompt, whose rows are driven, and of decode steps, which are taken or driven."""
    with llm.session(plan=plan, max_tokens=len(rest) + 1) as session:
        first = driven(llm, lambda: session.feed(prompt))
        follow = partial(session.feed, rest)
        return torch.cat((first, follow() if take else driven(llm, follow)))


@pytest.fixture
def both(monkeypatch):
    """The numbers of layers that were driven, or taken around their attention: for decode rows (True), for prompts."""
    numbers, true, around = {True: [], False: []}, Decoder.layer, Program.around

    def layer(self, index, hidden, call):
        numbers[call.parts[0].decode].append(index)
        return true(self, index, hidden, call)

    def layer_around(self, index, hidden, attend):
        numbers[attend.func.__self__.parts[0].decode].append(index)
        return around(self, index, hidden, attend)

    monkeypatch.setattr(Decoder, "layer", layer)
    monkeypatch.setattr(Program, "around", layer_around)
    return numbers


@pytest.fixture
def taken(both):
    """Those of decode rows."""
    return both[True]


OLDEST = FAMILIES[:4]
EVERYWHERE = [*[*PLANS][1:3], SLOWFAST]  # beside full attention, of which the next test is
WIDE, WINDOWED = ("llama-9-3", "qwen3"), ("mistral", "qwen2-wide")
CASES = [(plan, family) for plan in PLANS for family in (FAMILIES if plan in EVERYWHERE else OLDEST)]
CASES = [case for case in CASES if "tidal" not in case[0] or case[1] in WIDE]  # needs a wide layer
# Every time: every plan on one of those without windows and on one of those with, turn by turn; some everywhere.
ALWAYS = [(plan, of[at % 2]) for at, plan in enumerate(PLANS) for of in (WIDE, WINDOWED)]
ALWAYS += [case for case in CASES if case[0] in EVERYWHERE]


@pytest.mark.parametrize(("plan", "family"), marked(CASES, ALWAYS))
def test_equals_driven_layers(plan, family, text, taken):
    llm = llm_of(family)
    expected = fed(llm, text[:PROMPT], text[PROMPT:], plan, take=False)
    taken.clear()
    got = fed(llm, text[:PROMPT], text[PROMPT:], plan, take=True)
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-5)
    if family in WIDE:
        assert len(taken) <= (4 - PLANS[plan]) * (len(text) - PROMPT)


def test_fast_steps_ask_once_for_layers_in_which_units_stand_alike(text, taken, monkeypatch):
    asked, true = [], SlowFastReader.select

    def select(reader, row, views):
        asked.append((reader.slow, row.layer))
        return true(reader, row, views)

    monkeypatch.setattr(SlowFastReader, "select", select)
    fed(llm_of("llama-9-3"), text[:PROMPT], text[PROMPT:], SLOWFAST, take=True)
    fast = [layer for slow, layer in asked if not slow]
    assert len(fast) > (len(text) - PROMPT) / 2
    assert set(fast) == {0}
    assert not taken


@each_family
def test_equals_the_stock_model_and_drives_nothing(family, text, both):
    model = small_model(family)
    got = LLM(model, prefill_chunk=CHUNK).logits(text, decode_from=PROMPT)
    torch.testing.assert_close(got, stock_logits(model, text)[PROMPT - 1 :], rtol=0, atol=1e-5)
    assert not both[True]
    windows = small_llm(family).decoder.shape.windows  # of which every row of a prompt has its own
    assert set(both[False]) == {layer for layer, window in enumerate(windows) if window is not None}


PROMPTS = {  # the layers of four that are driven for some rows of a prompt
    "full": set(),
    "speed(cutoff=2)": {0, 1, 2, 3},  # the first token goes ahead alone, and somebody looks on
    "pop(cutoff=2)": {2, 3},  # above a gate rows see what has passed it, alone
    "lazyllm(layers=[2], keep=0.5, kernel=1, voters=1, rank_layers='last')": {2, 3},
    "lazyllm(layers=[2], keep=0.5)": {0, 1, 2, 3},  # the last rows vote in all layers below the gate
    "swiftkv(cutoff=2)": {2, 3},
    "random_drop(keep=0.5)": set(),
    "quantized(bits=8, group=16, residual=2, chunk=10)": set(),
    "snapkv(budget=12, window=4, local=0)": {0, 1, 2, 3},
    "h2o(budget=12)": {0, 1, 2, 3},
    "streaming(sink=4, recent=12)": {0, 1, 2, 3},
    "quest(page=2, budget=6, dense_layers=2)": {0, 1, 2, 3},
    "locret(budget=9, chunk=6, local=4)": {0, 1, 2, 3},
}


@pytest.mark.parametrize("plan", PROMPTS)
def test_rows_of_prompts(plan, text, both):
    """Taken all layers at once where they attend to all that was there before."""
    llm = fresh_llm("llama-9-3")
    params = SamplingParams(max_tokens=4, ignore_eos=True, logprobs=3)
    call = partial(llm.generate, [text], params, plan=plan)
    [got] = call()
    assert set(both[False]) == PROMPTS[plan]
    [expected] = driven(llm, call)
    for mine, theirs in zip(got.logprobs, expected.logprobs, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4)
    assert replace(got.stats, **TIMES) == replace(expected.stats, **TIMES)


def test_what_leaves_a_window_with_the_last_row_of_a_prompt_is_ranked_before(text):
    llm = llm_of("mistral")
    call = partial(
        llm.logits, text[: 3 * CHUNK + 4], decode_from=3 * CHUNK + 1, plan="static_prune(layers=2, keep=0.5)"
    )
    torch.testing.assert_close(call(), driven(llm, call), rtol=0, atol=2e-5)


@pytest.mark.parametrize("plan", ["full", "lazyllm(layers=[2], keep=0.5)", "streaming(sink=4, recent=12)"])
def test_a_prompt_that_comes_while_others_decode(plan, text, both):
    """What decodes is driven nowhere, whatever the prompt needs."""
    llm = fresh_llm("llama-9-3")
    params = SamplingParams(max_tokens=12, ignore_eos=True, logprobs=3)
    [alone] = llm.generate([text], params, plan=plan)
    with llm.engine(max_step_tokens=7) as engine:
        others = [engine.add(text[:5], replace(params, max_tokens=40)) for _ in range(2)]
        for _ in range(4):
            engine.step()
        both[True].clear()
        mine = engine.add(text, params, plan=plan)
        ended = {output.request_id: output.completion for output in engine.run() if output.completion is not None}
    assert not both[True] or "lazyllm" in plan  # it is driven above its gate in decode steps
    assert {*ended} == {*others, mine}
    assert ended[mine].token_ids == alone.token_ids
    for got, expected in zip(ended[mine].logprobs, alone.logprobs, strict=True):
        assert got == pytest.approx(expected, abs=1e-4)


@pytest.fixture
def one_thread():
    torch.set_num_threads(1)


# 144 columns of bfloat16 would be no whole cache lines.
@pytest.mark.parametrize("family", ["llama-wide" if family == "llama-9-3" else family for family in FAMILIES])
@pytest.mark.parametrize("packed", [False, True])
def test_in_bfloat16_it_is_rounded_where_modules_round(family, packed, text, one_thread):
    """To the bit, where a row reads one run, but where a sum in another order has fallen on the other side."""
    llm = llm_of(family, torch.bfloat16, packed)
    assert llm.decoder.program.rows > 0
    same, firsts = 0, range(PROMPT, len(text), 2)
    for first in firsts:
        got, expected = (fed(llm, text[:first], text[first : first + 1], take=take) for take in (True, False))
        same += torch.equal(got, expected)
        assert (got - expected).abs().max() < 2e-2 * expected.abs().max()
    assert same > 0.7 * len(firsts)
    prompt = partial(llm.logits, text)  # whose rows read together, in two runs
    assert (prompt() - driven(llm, prompt)).abs().max() < 2e-2 * expected.abs().max()


@pytest.mark.threads
@pytest.mark.parametrize("packed", [False, True])
def test_threads_change_nothing(packed, text):
    """Sums of units are merged otherwise, and nothing else."""
    llm = llm_of("qwen3", torch.bfloat16 if packed else torch.float32, packed)
    for plan in ("full", SLOWFAST, "streaming(sink=4, recent=12)"):
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(llm.logits(text, decode_from=PROMPT, plan=plan))
        torch.testing.assert_close(*found, rtol=0, atol=0.1 if packed else 2e-5)


@pytest.mark.parametrize(
    ("rows", "family"),
    [*((rows, family) for rows in (1, 2, 3, 5, 8) for family in FAMILIES[:2]), *((5, each) for each in FAMILIES[2:])],
)
def test_rows_of_many_sequences_and_plans(rows, family, text):
    llm = llm_of(family)
    plans = [
        "full",
        "quest(page=2, budget=6, dense_layers=1)",
        "sketch(budget=9, sink=2, recent=3, lag=4)",
        "tidal(budget=5)",
        "streaming(sink=4, recent=12)",
        SLOWFAST,
        "snapkv(budget=12, window=4, local=0)",
        "speed(cutoff=2)",
    ]
    prompts = [text[at : at + 20 + 3 * at] for at in range(rows)]
    params = SamplingParams(max_tokens=9, ignore_eos=True, logprobs=3)
    call = partial(llm.generate, prompts, params, plan=[plans[at % len(plans)] for at in range(rows)])
    for mine, theirs in zip(call(), driven(llm, call), strict=True):
        assert mine.token_ids == theirs.token_ids
        for got, expected in zip(mine.logprobs, theirs.logprobs, strict=True):
            assert got == pytest.approx(expected, abs=1e-4)
        for counted in ("rows_computed", "units_read", "total_bytes", "slow_steps", "fast_steps", "cache_bytes"):
            assert getattr(mine.stats, counted) == getattr(theirs.stats, counted)


@pytest.mark.parametrize(("most", "calls"), [(1, 4), (2 * 9 * 13, 2), (2**22, 1)])
def test_votes_of_many_units_come_in_several_calls(most, calls, text, monkeypatch):
    llm = llm_of("llama-9-3")
    begun, true = [], Program.run
    monkeypatch.setattr(Program, "run", lambda *args: begun.append(1) or true(*args))
    for module in (reading, frame):
        monkeypatch.setattr(module, "VOTES", most)
    plan = "h2o(budget=12, chunk=6, local=0)"
    with llm.session(plan=plan, max_tokens=len(text)) as session:
        session.feed(text[:PROMPT])
        begun.clear()
        got = session.feed(text[PROMPT:])
    assert len(begun) == calls * len(got)
    expected = driven(llm, lambda: llm.logits(text, decode_from=PROMPT, plan=plan))[1:]
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-5)


APART = [
    "quest(page=5, budget=40, dense_layers=1)",
    "sketch(budget=40, sink=3, recent=7, lag=9)",
    "tidal(layers=[0, 2], budget=30)",
    "streaming(sink=3, recent=120) + quest(page=4, budget=60, dense_layers=0)",
]


@pytest.mark.parametrize("plan", APART)
@pytest.mark.parametrize("family", FAMILIES[:1])
def test_units_that_lie_apart_in_memory_that_forks_share(plan, family, text, taken):
    llm, ids = llm_of(family), 5 * text

    def call():
        with llm.session(plan=plan, max_tokens=len(ids)) as session:
            session.feed(ids[:100])
            out, twin = [], session.fork()
            for each, tokens in ((session, ids[7:20]), (twin, ids[3:80])):
                out.append(each.feed(tokens))
            grandchild = twin.fork()  # its own units, its parent's, and those of both before
            assert len(grandchild.state.caches[1].memory.measures) > 1
            out += [grandchild.feed(ids[30:40]), twin.feed(ids[31:40]), session.feed(ids[:5])]
            return torch.cat(out), [each.stats.units_read for each in (session, twin, grandchild)]

    got, counts = call()
    assert not taken
    expected, theirs = driven(llm, call)
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-5)
    assert counts == theirs


@torch.inference_mode()
@pytest.mark.parametrize("plan", [APART[0], APART[1], SLOWFAST])
def test_what_nobody_reads_may_hold_anything(plan, text):
    """NaN in the slots behind the live ones, and in memory that kernels are given to work in."""
    llm = llm_of("llama-9-3")
    ids = 2 * text

    def call(*, spoil):
        with llm.session(plan=plan, max_tokens=len(ids)) as session:
            out = [session.feed(ids[:60])]
            for token in ids[60:80]:
                for cache in session.state.caches if spoil else ():
                    for slab in (cache.slab.keys, cache.slab.values):
                        slab[:, cache.stop - cache.memory.offset :] = torch.nan
                for memory in llm.decoder.program._memory.values() if spoil else ():
                    memory.fill_(255)
                out.append(session.feed([token]))
            return torch.cat(out)

    torch.testing.assert_close(call(spoil=True), call(spoil=False), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("family", "hooked"),
    [("llama-9-3", "mlp"), ("phi3-wide", "self_attn.qkv_proj"), ("gemma3-wide", "self_attn.q_norm")],
)
def test_a_layer_with_anything_hooked_to_it_is_driven(family, hooked, text, taken):
    model = small_model(family)
    seen = []
    model.model.layers[2].get_submodule(hooked).register_forward_hook(lambda *_: seen.append(1))
    llm = LLM(model, prefill_chunk=CHUNK)
    expected = small_llm(family).logits(text, decode_from=PROMPT)
    torch.testing.assert_close(llm.logits(text, decode_from=PROMPT), expected, rtol=0, atol=2e-5)
    assert len(seen) > len(text) - PROMPT
    assert set(taken) == {2}


def adapt(model, rank=3):
    """Give every packed linear layer of the decoder an adapter, large enough to be seen."""
    torch.manual_seed(5)
    for _, module in packed_modules(model.model.layers):
        down, up = torch.randn(rank, module.in_features), torch.randn(module.out_features, rank)
        module.adapt((down / module.in_features**0.5).to(model.dtype), (0.3 * up).to(model.dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["qwen3", "phi3-wide"])
def test_adapters_beside_packed_weights_are_taken(family, dtype, text, taken, one_thread):
    """A product of its own, and some rows of one that has those of all."""
    model = small_model(family, dtype=dtype)
    quantize_model(model)
    without = LLM(model, prefill_chunk=CHUNK).logits(text, decode_from=PROMPT)
    adapt(model)
    llm = LLM(model, prefill_chunk=CHUNK)
    llm.logits(text, decode_from=PROMPT)
    assert not taken
    for length in (len(text), 2, 5):  # rows one by one, and together
        first = min(PROMPT, length)
        call = partial(llm.logits, text[:length], decode_from=first)
        got, expected = call(), driven(llm, call)
        near = 2e-5 if dtype == torch.float32 else 2e-2 * expected.abs().max()
        assert (got - expected).abs().max() < near
        if length == len(text):
            assert (got - without).abs().max() > 0.1 * expected.abs().max()


def test_an_adapter_of_more_ranks_than_the_layer_has_columns_is_driven(text, taken):
    model = small_model("qwen3")
    quantize_model(model)
    module = model.model.layers[1].self_attn.q_proj
    module.adapt(torch.zeros(module.in_features + 1, module.in_features), torch.zeros(module.out_features, 65))
    LLM(model, prefill_chunk=CHUNK).logits(text, decode_from=PROMPT)
    assert set(taken) == {1}


def test_weights_that_lie_elsewhere_are_found_again(text):
    """Put in the place of others while no sequence runs, as libraries that load adapters do."""
    llm = fresh_llm("llama-9-3")
    before = llm.logits(text, decode_from=PROMPT)
    with torch.no_grad():
        for layer in llm.model.model.layers:
            weight = layer.mlp.down_proj.weight
            weight.data = weight.data * 1.5
    got = llm.logits(text, decode_from=PROMPT)
    assert not torch.allclose(got, before, atol=1e-3)
    torch.testing.assert_close(got, driven(llm, lambda: llm.logits(text, decode_from=PROMPT)), rtol=0, atol=2e-5)


@pytest.mark.parametrize("family", ["llama", "phi3", "gpt_oss", "cohere2-wide", "qwen3_moe-wide", "phi3-partial"])
def test_what_the_kernel_does_not_know_is_driven(family, text, monkeypatch):
    """Heads of 16, sinks and experts, norms of another kind, and a rotation of a part of a head."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    monkeypatch.setitem(models.WIDE, "phi3-partial", partial(Phi3Config, **SMALL, head_dim=32, rope_parameters=rope))
    model = small_model(family)
    llm = LLM(model, prefill_chunk=CHUNK)
    assert llm.decoder.program.rows == 0
    got = llm.logits(text, decode_from=PROMPT)
    torch.testing.assert_close(got, stock_logits(model, text)[PROMPT - 1 :], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: setattr(layer.mlp, "act_fn", torch.nn.ReLU()),
        lambda layer: setattr(layer, "input_layernorm", torch.nn.LayerNorm(64)),
        lambda layer: setattr(layer.self_attn.q_norm, "variance_epsilon", 1e-3),
        lambda layer: setattr(layer.mlp, "down_proj", torch.nn.Linear(80, 64, bias=False)),
        lambda layer: setattr(layer.self_attn.o_proj, "weight", torch.nn.Parameter(torch.zeros(64, 128).double())),
        lambda layer: delattr(layer.self_attn, "scaling"),
    ],
)
def test_a_layer_that_is_not_what_its_family_says_is_driven(change):
    model = small_model("qwen3")
    change(model.model.layers[1])
    program = LLM(model).decoder.program
    assert [program.takes(layer, 1) for layer in range(4)] == [True, False, True, True]


@pytest.mark.parametrize(
    ("family", "packed", "loaded"),
    [("llama", False, set()), ("qwen3", False, {LAYERS}), ("llama", True, {PACKED}), ("qwen3", True, {PACKED, LAYERS})],
)
def test_kernels_are_loaded_that_a_model_can_use(family, packed, loaded, monkeypatch):
    names, true = [], importlib.import_module
    monkeypatch.setattr(importlib, "import_module", lambda name, *rest: names.append(name) or true(name, *rest))
    fresh_llm(family, torch.bfloat16, packed)
    assert {name for name in (PACKED, LAYERS) if f"winnow.kernels.{name}" in names} == loaded


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize(
    "readers",  # rows that read together, and (units, limited) of each run
    [
        [(1, [(1, False)])],
        [(1, [(5000, False)])],
        [(1, [(4, True), (300, False)]), (1, [(90, False)])],
        [(1, [(700, False)])] * 5,
        [(1, [(700, False)]), (7, [(2000, False), (7, False)]), (1, [(40, False)])],
    ],
)
def test_runs_are_shared_out_evenly_and_whole(readers, threads):
    cut = cut_of(tuple((rows, tuple((*run, ()) for run in runs)) for rows, runs in readers), 3, threads)
    flat = [(rows, units) for rows, runs in readers for units, _ in runs]
    covered_units = {}
    for number, head, start, told in zip(cut.run, cut.head, cut.start, cut.told, strict=True):
        place = covered_units.setdefault((number, head), 0)
        assert start == place
        assert told[tables.READERS] == flat[number][0]
        covered_units[number, head] += told[tables.UNITS]
    assert covered_units == {(number, head): flat[number][1] for number in range(len(flat)) for head in range(3)}
    live = sum(rows for rows, _ in readers)
    assert (cut.bounds[0], cut.bounds[-1], len(cut.bounds)) == (0, len(cut.told), threads + 1)
    assert (cut.heads[0], cut.heads[-1], len(cut.heads)) == (0, len(cut.told), 3 * live + 1)
    first = 0
    for rows, _ in readers:  # the runs of rows that read together are their first one's
        at = cut.heads[3 * first : 3 * (first + rows) + 1]
        assert set(cut.told[at[0] : at[-1], tables.READER] // 3) == {first}
        assert (at[3:] == at[3]).all()
        first += rows
    work = cut.told[:, tables.UNITS] * cut.told[:, tables.READERS]
    read = [int(work[first:last].sum()) for first, last in zip(cut.bounds, cut.bounds[1:], strict=False)]
    most = max(rows for rows, _ in readers)
    assert max(read) <= 3 * sum(rows * units for rows, units in flat) / threads + 2 * 128 * most
