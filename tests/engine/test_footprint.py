"""What a text takes: the bound that admits it, what a run holds and what the process comes to; and the inversion."""

import json
import sys

import pytest
import torch
from transformers import Gemma2Config, LlamaConfig
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

import forked
from models import SMALL
from tiny import POSITIONS, tiny_model
from tokenizers_for_tests import byte_tokenizer
from trials import small_llm
from winnow import LLM, Plan, SamplingParams
from winnow.engine.bound import bound_bytes
from winnow.engine.footprint import Footprints
from winnow.engine.stand_in import StandIn
from winnow.errors import InputError
from winnow.kernels.linear import PIECE, multiplied_in
from winnow.policies.base import ModelShape
from winnow.policies.compute.base import Deep
from winnow.policies.registry import POLICIES

CHUNK, NEW = 16, 5
SLACK = 8 * 2**20  # of resident memory, which comes and goes in pages and arenas
ALONE = [name for name, policy in POLICIES.items() if not policy.identity]


def footprints(llm, plan, new=NEW, tokenizer=None):
    stand_in = StandIn(lambda: tokenizer)
    return Footprints(Plan.parse(plan), llm.decoder.shape, new, CHUNK, 0, stand_in.deep_of(Plan.parse(plan)))


@pytest.fixture(scope="module")
def talker():
    return LLM(tiny_model(), tokenizer=byte_tokenizer(), prefill_chunk=CHUNK)


@pytest.mark.parametrize("name", ["full", *ALONE])
def test_what_is_held_is_what_admits_requests(name):
    llm = small_llm("gemma2")
    policy = POLICIES[name]
    plan = Plan() if name == "full" else Plan(**{policy.verb: policy(**policy.trial)})
    made = footprints(llm, plan)
    for prompt in (31, 200):
        held = made.of(prompt)
        assert held.units + held.beside == bound_bytes(
            plan, llm.decoder.shape, prompt, NEW - 1, CHUNK, made.deep(prompt)
        )
        assert held.working > 0


@pytest.mark.parametrize(
    "plan",
    ["full", "streaming(sink=2, recent=20)", "h2o(budget=20, chunk=16, local=4)",
     "h2o(budget=20, chunk=16, local=4, by_head='adaptive', by_layer='pyramid')", "lazyllm(layers=[1], keep=0.5)",
     "slowfast(budget=16, recent=8, sink=2, trigger='periodic')", "speed(cutoff=1)", "swiftkv(cutoff=1)",
     "quantized(group=16, residual=16, chunk=16)", "random_drop(keep=0.5)",
     "kvzip(budget=12, chunk=32, local=4)", "kvzip(budget=12, chunk=32, local=4, asks=[9])"],
)  # fmt: skip
@pytest.mark.parametrize("prompt", [40, 300])
def test_a_run_never_holds_more(talker, plan, prompt):
    message = "a" * (prompt - len("<user><assistant>"))
    ids = talker.render([{"role": "user", "content": message}])
    assert len(ids) == prompt
    params = SamplingParams(max_tokens=NEW, ignore_eos=True)
    if plan.startswith("quantized"):
        pytest.skip("heads of 8 channels") if talker.decoder.shape.head_dim % 16 else None
    [done] = talker.generate([ids], params, plan=plan)
    held = footprints(talker, plan, tokenizer=talker.tokenizer).of(prompt)
    assert done.stats.peak_cache_bytes <= held.units
    assert done.stats.total_bytes <= held.units + held.beside
    if plan in ("full", "speed(cutoff=1)"):
        assert (done.stats.total_bytes, done.stats.peak_cache_bytes) == (held.units + held.beside, held.units)


@pytest.mark.parametrize("name", ["full", *ALONE])
def test_more_text_never_takes_less(name):
    llm = small_llm("gemma2")
    policy = POLICIES[name]
    made = footprints(llm, "full" if name == "full" else str(Plan(**{policy.verb: policy(**policy.trial)})))
    totals = [made.of(prompt).total for prompt in range(20, 260)]
    assert totals == sorted(totals)


@pytest.mark.parametrize(
    "plan", ["full", "h2o(budget=64)", "lazyllm", "slowfast(budget=32)", "speed", "speed(anchors='last:16')"]
)
def test_the_longest_prompt_fits_and_one_more_token_does_not(talker, plan):
    made = footprints(talker, plan, tokenizer=talker.tokenizer)
    for most in (200_000, 700_000, 2_000_000):
        longest = made.longest(most)
        if 0 < longest < made.room:
            assert made.of(longest).total <= most < made.of(longest + 1).total
    assert made.longest(made.of(1000).total) >= 1000
    assert made.longest(0) == 0
    assert made.longest(2**50) == made.room == POSITIONS + 1 - NEW


@pytest.mark.parametrize("before", ["", "pop + ", "speed(anchors='bos+last:16') + "])
def test_a_plan_that_needs_no_more_positions_takes_any_length(talker, before):
    made = footprints(talker, f"{before}streaming(sink=2, recent=20)", tokenizer=talker.tokenizer)
    assert made.room is made.longest(10**9) is None
    assert made.of(10**9).units == made.of(10**6).units
    grows = footprints(talker, "sirllm(budget=64)")  # 4 bytes a token
    assert POSITIONS < grows.longest(10**9) < 250_000_000


def test_a_model_without_positions_for_the_answer(talker):
    made = footprints(talker, "full", new=POSITIONS + 7)
    assert made.room == made.longest(2**50) == 0


def test_a_stand_in_is_a_conversation_in_the_template():
    tokenizer = byte_tokenizer()
    stand_in = StandIn(lambda: tokenizer)
    for tokens in (3, 11, 17, 18, 400):
        made = stand_in.ids(tokens)
        assert len(made) == tokens
        assert tokenizer.decode(made).endswith("<assistant>"[-tokens:])
    plan = Plan.parse("speed(anchors='bos')")
    assert stand_in.deep_of(plan)(400) == Deep((0,), 400 - len("<assistant>"), 400)
    assert StandIn(lambda: None).deep_of(plan)(400) == Deep((0,), 399, 400)
    assert StandIn(lambda: byte_tokenizer(None)).deep_of(plan)(400) == Deep((0,), 399, 400)
    assert StandIn(lambda: pytest.fail("it is not needed")).deep_of(Plan())(400) == Deep.none(400)


MEASURED = """
import ctypes, json, re, sys
from dataclasses import asdict
import torch
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM
from winnow import LLM, SamplingParams

hidden, mlp, layers, dtype, weights, chunk, plan = json.loads(sys.argv[1])
def status(field):
    return 1024 * int(re.search(rf"{field}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=1000, hidden_size=hidden, intermediate_size=mlp, num_hidden_layers=layers,
    num_attention_heads=hidden // 64, num_key_value_heads=hidden // 256, max_position_embeddings=65536,
)
model = LlamaForCausalLM(config).to(getattr(torch, dtype)).eval()
llm = LLM(model, weights=weights, prefill_chunk=chunk)
del model
ids = [5 + at * 7 % 900 for at in range(4 * chunk)]
llm.generate([ids[:chunk + 64]], SamplingParams(max_tokens=2, ignore_eos=True), plan=plan)
ctypes.CDLL("libc.so.6").malloc_trim(0)  # what is left is held
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
[done] = llm.generate([ids], SamplingParams(max_tokens=4, ignore_eos=True), plan=plan)
took = status("VmHWM") - before
print(json.dumps([took, done.stats.total_bytes, asdict(llm.decoder.shape)]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads resident memory as Linux counts it")
@pytest.mark.parametrize(
    ("hidden", "layers", "chunk"), [(512, 3, 1024), pytest.param(1024, 4, 2048, marks=pytest.mark.full)]
)
@pytest.mark.parametrize(
    ("dtype", "weights", "plan"),
    [
        ("bfloat16", "auto", "full"), ("float32", "auto", "full"), ("bfloat16", "int4", "full"),
        ("bfloat16", "auto", "h2o(budget=1024)"), ("bfloat16", "auto", "lazyllm(layers=[1], keep=0.5)"),
    ],
)  # fmt: skip
def test_the_memory_of_a_process_is_what_the_formula_says(hidden, layers, chunk, dtype, weights, plan):
    mlp = 4096
    given = json.dumps([hidden, mlp, layers, dtype, weights, chunk, plan])
    [ended] = forked.run([["-c", MEASURED, given]])
    assert ended.code == 0, ended.err
    took, held, facts = json.loads(ended.out)
    shape = ModelShape(**{name: tuple(each) if isinstance(each, list) else each for name, each in facts.items()})
    kind = getattr(torch, dtype)
    pieces = weights == "int4" or multiplied_in(kind) != kind
    expanded = 2 * PIECE * multiplied_in(kind).itemsize if pieces else hidden * mlp * kind.itemsize
    said = Footprints(Plan.parse(plan), shape, 4, chunk, expanded, Deep.none).of(4 * chunk)
    assert said.working / 3 < took - held <= said.working + SLACK


@pytest.mark.parametrize("anchors", ["bos", "last:16+bos", "first:4", "system", "none"])
def test_of_a_text_without_an_end_a_policy_is_shown_a_part(monkeypatch, anchors):
    plan, tokenizer = Plan.parse(f"speed(anchors='{anchors}')"), byte_tokenizer()
    whole = StandIn(lambda: tokenizer).deep_of(plan)(4000)
    monkeypatch.setattr("winnow.engine.stand_in.SHOWN", 1000)
    assert StandIn(lambda: tokenizer).deep_of(plan)(4000) == whole
    assert len(StandIn(lambda: tokenizer).deep_of(Plan.parse("speed(anchors='all')"))(10**12)) == 10**12
    assert StandIn(lambda: tokenizer).deep_of(Plan.parse("speed(anchors='first:3000')"))(10**6).anchors[-1] == 2999
    with pytest.raises(InputError, match="asks for 3000 tokens"):
        StandIn(lambda: tokenizer).deep_of(Plan.parse("speed(anchors='first:3000')"))(2000)


@pytest.mark.parametrize("bootstrap", [40, 200, 5000])
def test_how_the_last_rows_attend_is_counted(bootstrap):
    """Of slow-fast's bootstrap, logits over all query heads, of no more rows than there are."""
    shape, prompt = small_llm("llama").decoder.shape, 1000
    few, many = (
        Footprints(Plan.parse(f"slowfast(budget=64, bootstrap={rows})"), shape, 1, 64, 0, Deep.none).of(prompt).working
        for rows in (1, bootstrap)
    )
    assert many - few >= 4 * shape.q_heads * prompt * (min(bootstrap, prompt) - 1)


WINDOWED = {"layer_types": ["sliding_attention"] * 3 + ["full_attention"], "sliding_window": 64}


@pytest.mark.parametrize(
    ("kind", "more", "chunk", "prompt", "plan"),
    [
        (LlamaConfig, {"num_hidden_layers": 8}, 4, 64, "fastkv(keep=0.1, layer=1, window=32) + "
         "hf_quantized(bits=2, group_size=8, residual_length=4, chunk=4)"),
        (LlamaConfig, {"num_hidden_layers": 8}, 64, 61, "fastkv(keep=0.75, layer=1, window=4, kernel=1) + "
         "hf_quantized(bits=2, group_size=8, residual_length=7, chunk=12)"),
        (Gemma2Config, WINDOWED, 16, 160, "snapkv(budget=64, window=4, kernel=3) + "
         "quantized(bits=2, group=16, residual=0, chunk=16)"),
        (Gemma2Config, WINDOWED, 16, 160, "knorm(budget=64, chunk=16) + "
         "quantized(bits=2, group=16, residual=0, chunk=16)"),
    ],
)  # fmt: skip
def test_what_becomes_codes_late_is_counted_as_it_came(kind, more, chunk, prompt, plan):
    """Few rows that go through many layers in one call; a store that waits; windows beside layers that evict."""
    model = AutoModelForCausalLM.from_config(kind(**{**SMALL, "head_dim": 32, **more}), attn_implementation="eager")
    llm = LLM(model.float(), prefill_chunk=chunk)
    with llm.session(plan=plan, max_tokens=1) as session:
        session.feed([5 + place % 80 for place in range(prompt)])
        bound = bound_bytes(session.plan, llm.decoder.shape, prompt, 0, chunk)
        assert session.stats.held_bytes <= session.stats.total_bytes <= bound
