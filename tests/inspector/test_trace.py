"""Traces equal the stats and the caches, survive JSON, and the page says what they say."""

import json
import random
import re
import shutil
import subprocess
from dataclasses import replace
from importlib import resources
from itertools import pairwise

import pytest
import torch

from covering import covered
from models import small_model
from tokenizers_for_tests import byte_tokenizer
from winnow import LLM, SamplingParams
from winnow.errors import CapacityError, InputError, PlanError
from winnow.inspector import Recorder, Trace, record, render
from winnow.inspector.page import SCRIPTS, embedded
from winnow.inspector.recorder import token_texts
from winnow.inspector.runs import count, pack, positions, runs_of, unpack
from winnow.inspector.trace import State
from winnow.tasks import task

PROMPT, NEW = 40, 8
PLANS = [
    "full",
    "streaming(sink=2, recent=9)",
    "lazyllm(layers=[1, 3], keep=[0.5, 0.4])",
    "lazyllm(layers=[2], keep=0.3, prune_generated=True, keep_decode=None, revive='causal')",
    "lazyllm(layers=[1], keep=0.4, revive='never')",
    "random_heads(budget=9, chunk=6, stabilizers=3, local=4, width=8, decode_chunk=3)",
    "slowfast(trigger='periodic', interval=4, sink=1, budget=3, recent=2, bootstrap=2, selector='attention')",
    "lazyllm(layers=[1], keep=0.4) + slowfast(trigger='periodic', interval=3, sink=1, budget=3, recent=2, bootstrap=2)",
]
NEEDLE = resources.files("winnow") / "assets" / "needle" / "config.json"
WEB = resources.files("winnow.inspector") / "web"
NODE = shutil.which("node")


@pytest.fixture
def llm():
    return LLM(small_model("llama"), prefill_chunk=7)


@pytest.fixture
def ids():
    source = random.Random(3)
    return [source.randrange(3, 97) for _ in range(PROMPT)]


def check_counts(trace):
    stats = trace.stats
    assert sum(step.rows for step in trace.steps) == stats["rows_computed"] > 0
    assert sum(step.revived_rows for step in trace.steps) == stats["revived_rows"]
    assert sum(step.units_read for step in trace.steps) == stats["units_read"]
    assert sum(step.rows_full for step in trace.steps) + trace.omitted * trace.layers == stats["rows_full"]
    assert sum(step.units_full for step in trace.steps) == stats["units_full"]
    assert trace.prompt + stats["new_tokens"] == len(trace.tokens)
    assert len(trace.steps) == stats["new_tokens"]


@covered(plan=PLANS, family=["llama", "mistral"])
def test_counts_are_those_of_generate(ids, plan, family):
    llm = LLM(small_model(family), prefill_chunk=7)
    trace = record(llm, ids, plan=plan, max_tokens=NEW, ignore_eos=True)
    [out] = llm.generate([ids], SamplingParams(max_tokens=NEW, ignore_eos=True), plan=plan)
    assert [token.id for token in trace.tokens] == ids + out.token_ids
    counts = {name: value for name, value in out.stats.to_dict().items() if isinstance(value, int)}
    assert trace.stats == counts
    assert (trace.plan, trace.finish_reason, trace.steps[0].fed) == (plan, "length", (0, PROMPT))
    check_counts(trace)


@pytest.mark.parametrize("plan", PLANS)
def test_states_are_those_of_the_caches(llm, ids, plan):
    recorder = Recorder(llm, ids, plan=plan, max_tokens=NEW, ignore_eos=True)
    before = [set() for _ in range(4)]
    for step in recorder.steps():
        if recorder.done == NEW:  # its state has gone
            break
        state = recorder._state
        for layer, (cache, at) in enumerate(zip(state.caches, step.layers, strict=True)):
            held = set(cache.live_positions().flatten().tolist())
            aside = set(state.aside[layer].live.tolist()) if layer in state.aside else set()
            sets = {
                name: set(positions(getattr(at, name))) for name in ("computed", "revived", "read", "held", "aside")
            }
            assert (sets["held"], sets["aside"]) == (held, aside)
            assert at.units_held == cache.length * 2
            assert sets["revived"] <= sets["computed"]
            assert held - before[layer] <= sets["computed"]
            assert not aside & held
            assert sets["read"] <= before[layer] | sets["computed"]
            states = step.states(layer)
            assert len(states) == step.fed[1] == state.position
            assert {i for i, s in enumerate(states) if s >= State.COMPUTED} == sets["computed"]
            assert {i for i, s in enumerate(states) if s == State.REUSED} == sets["read"] - sets["computed"]
            assert {i for i, s in enumerate(states) if s == State.ASIDE} == aside
            before[layer] = held
        # What is late was known before, and the fed tokens are not.
        assert all(count(at.revived) == sum(p < step.fed[0] for p in positions(at.computed)) for at in step.layers)


def test_states_by_hand(llm, ids):
    full = record(llm, ids, plan="full", max_tokens=2, ignore_eos=True)
    assert full.steps[0].states(0) == [State.COMPUTED] * PROMPT
    assert full.steps[1].states(3) == [State.REUSED] * PROMPT + [State.COMPUTED]
    stream = record(llm, ids, plan="streaming(sink=2, recent=9)", max_tokens=2, ignore_eos=True)
    gone = [State.ABSENT] * (PROMPT - 10)
    assert stream.steps[0].states(1) == [State.COMPUTED] * PROMPT
    # 11 units are read, the step's own included; the oldest of the recent ones is evicted and not read.
    assert stream.steps[1].states(1) == [State.REUSED] * 2 + gone + [State.REUSED] * 8 + [State.COMPUTED]


def test_lazyllm_sets_aside_and_revives(llm, ids):
    trace = record(llm, ids, plan="lazyllm(layers=[1], keep=0.3, max_revive=None)", max_tokens=2, ignore_eos=True)
    prefill, decode = trace.steps
    kept = -(-3 * (PROMPT - 1) // 10) + 1
    assert [count(at.computed) for at in prefill.layers] == [PROMPT, kept, kept, kept]
    assert prefill.aside == PROMPT - kept == count(decode.layers[2].revived)
    assert decode.aside == 0
    assert trace.entrances == (1,)


@pytest.mark.parametrize("chunk", [1, 16, 512])
def test_the_chunk_size_does_not_show(ids, chunk):
    """But in the units read: a step of more revived rows than a chunk reads them once per chunk."""

    def sets(size):
        llm = LLM(small_model("llama"), prefill_chunk=size)
        trace = record(llm, ids, plan="lazyllm(layers=[1, 3], keep=0.5)", max_tokens=4)
        return [[replace(layer, units_read=0) for layer in step.layers] for step in trace.steps]

    assert sets(chunk) == sets(7)


@pytest.mark.skipif(not NEEDLE.is_file(), reason="the bundled model is absent")
@pytest.mark.parametrize("plan", ["full", "streaming(sink=4, recent=64)", "lazyllm"])
def test_the_bundled_model_on_a_real_text(plan):
    llm = LLM("needle")
    example = task("passkey").example(random.Random(1), tokens=300, tokenizer=llm.tokenizer, depth=0.4)
    ids = llm.render([{"role": "user", "content": example.prompt}])
    trace = record(llm, ids, plan=plan, max_tokens=16)
    check_counts(trace)
    assert trace.model == "needle"
    assert "".join(token.text for token in trace.tokens[: trace.prompt]) == llm.tokenizer.decode(ids)
    if plan != "streaming(sink=4, recent=64)":  # which has forgotten the key
        assert example.answers[0] in trace.text
    assert (trace.stats["revived_rows"] > 0) == (plan == "lazyllm")
    assert Trace.from_dict(json.loads(json.dumps(trace.to_dict()))) == trace


def test_an_interrupted_run_is_whole_steps(llm, ids):
    recorder = Recorder(llm, ids, plan=PLANS[2], max_tokens=NEW, ignore_eos=True)
    for _ in recorder.steps():
        if recorder.done == 3:
            break
    trace = recorder.trace()
    assert (len(trace.steps), trace.finish_reason) == (3, None)
    check_counts(trace)


@pytest.mark.parametrize(
    ("keywords", "error", "says"),
    [
        ({"plan": "lazily"}, PlanError, "unknown policy"),
        ({"plan": "lazyllm(layers=[9], keep=0.5)"}, PlanError, "layers"),
        ({"max_tokens": 0}, InputError, "max_tokens=0"),
        ({"max_tokens": 9999}, CapacityError, "positions"),
        ({"prompt": []}, InputError, "no prompts"),
        ({"prompt": [5000]}, InputError, "token 0"),
        ({"prompt": "text"}, InputError, "no tokenizer"),
    ],
)
def test_bad_input_is_refused_before_any_work(llm, ids, keywords, error, says):
    with pytest.raises(error, match=says):
        Recorder(llm, **{"prompt": ids, **keywords})


@pytest.mark.parametrize("seed", range(20))
def test_runs_hold_any_set(seed):
    source = random.Random(seed)
    wanted = sorted(source.sample(range(50), source.randrange(50)))

    runs = runs_of([torch.tensor(wanted[::2], dtype=torch.int64), torch.tensor([wanted, wanted], dtype=torch.int64)])
    assert list(positions(runs)) == wanted
    assert count(runs) == len(wanted)
    assert unpack(pack(runs)) == runs
    assert all(stop < start for (_, stop), (start, _) in pairwise(runs))


def test_token_texts_join_to_the_text():
    text = "Año nuevo: 新年, 🙂 end"
    tokenizer = byte_tokenizer()
    ids = tokenizer(text)["input_ids"] + [2]
    texts = token_texts(tokenizer, ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == text + "<eos>"
    assert token_texts(None, [5, 7]) == ["[5]", "[7]"]


def damaged(document, path, value):
    *parents, key = path
    at = document
    for parent in parents:
        at = at[parent]
    at[key] = value


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (["format"], "other", "not a trace"),
        (["version"], 4, "version 4"),
        (["sets", 1], [1], "odd number"),
        (["sets", 1], [0, 0], "run"),
        (["sets", 1], [0, 99], "does not fit"),
        (["steps", 0, "layers"], [], "does not fit"),
        (["steps", 0, "layers", 0, "held"], 10_000, "damaged"),
        (["steps", 0, "produced"], 99, "does not fit"),
        (["steps", 0], {}, "missing"),
    ],
)
def test_a_damaged_document_is_refused(llm, ids, path, value, says):
    document = json.loads(json.dumps(record(llm, ids, max_tokens=2).to_dict()))
    damaged(document, path, value)
    with pytest.raises(InputError, match=says):
        Trace.from_dict(document)


def data_of(page):
    return re.search(r'<script type="application/json" id="trace">(.*?)</script>', page, re.DOTALL)[1]


def test_the_page_is_one_file_with_the_trace_in_it(llm, ids):
    trace = record(llm, ids, plan=PLANS[2], max_tokens=3)
    page = render(trace)
    assert Trace.from_dict(json.loads(data_of(page))) == trace
    around = page.replace(data_of(page), "")
    assert not re.search(r"https?:|//[a-z]|\bsrc=|\bhref=|@import|url\(|fetch\(|{{", around)
    assert "default-src 'none'" in around


def test_no_text_of_a_prompt_breaks_out_of_the_page():
    nasty = "</script><script>alert(1)</script><!-- {{style}} http://x.example \u2028 & é"
    llm = LLM(small_model("llama"))
    trace = record(llm, [5, 6], max_tokens=1)
    tokens = tuple(type(token)(token.id, nasty) for token in trace.tokens)
    trace = Trace(**{**vars(trace), "tokens": tokens, "plan": "<b>", "model": "</title>"})
    assert "<" not in embedded(trace)
    page = render(trace)
    assert page.count("</script>") == 2
    assert "<title>&lt;b&gt; on &lt;/title&gt;</title>" in page
    assert Trace.from_dict(json.loads(data_of(page))) == trace


@pytest.mark.skipif(NODE is None, reason="there is no node to run the page's script")
@pytest.mark.parametrize("plan", PLANS)
def test_the_page_reads_the_states_that_the_trace_has(llm, ids, plan, tmp_path):
    trace = record(llm, ids, plan=plan, max_tokens=NEW, ignore_eos=True)
    script = tmp_path / "states.js"
    (tmp_path / "trace.json").write_text(json.dumps(trace.to_dict()), encoding="utf-8")
    script.write_text(
        f"const {{ Cells }} = require({str(WEB / 'cells.js')!r});"
        f"const trace = JSON.parse(require('fs').readFileSync({str(tmp_path / 'trace.json')!r}));"
        "const cells = new Cells(trace);"
        "console.log(JSON.stringify(trace.steps.map((_, i) => [[...cells.states(i)], [...cells.depths(i)], "
        "cells.counts(i), cells.revivals(5)])));",
        encoding="utf-8",
    )
    said = json.loads(subprocess.run([NODE, script], capture_output=True, check=True, text=True).stdout)
    tokens, computed = len(trace.tokens), [set() for _ in range(trace.layers)]
    for step, (states, depths, counts, _) in zip(trace.steps, said, strict=True):
        for layer, at in enumerate(step.layers):
            row = states[layer * tokens : (layer + 1) * tokens]
            assert row == [*step.states(layer), *[len(State)] * (tokens - step.fed[1])]
            computed[layer] |= set(positions(at.computed))
        assert depths == [sum(token in layer for layer in computed) for token in range(tokens)]
        assert (counts["rows"], counts["revived"], counts["aside"]) == (step.rows, step.revived_rows, step.aside)
        assert (counts["unitsRead"], counts["unitsFull"]) == (step.units_read, step.units_full)
    revived = [
        [number, layers]
        for number, step in enumerate(trace.steps)
        if (layers := [i for i, at in enumerate(step.layers) if 5 in positions(at.revived)])
    ]
    assert said[0][3] == revived


@pytest.mark.skipif(NODE is None, reason="there is no node to check the page's script")
def test_the_script_of_the_page_parses(tmp_path):
    whole = tmp_path / "whole.js"
    whole.write_text("\n".join((WEB / name).read_text() for name in SCRIPTS))
    checked = subprocess.run([NODE, "--check", whole], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
