"""A trace says which decode steps were slow and what the fast ones read, and the page marks them."""

import json
import random
import shutil
import subprocess
from importlib import resources

import pytest

from models import WINDOW, small_model
from winnow import LLM, SamplingParams
from winnow.errors import InputError
from winnow.inspector import Recorder, Trace, record, render
from winnow.inspector.page import SCRIPTS
from winnow.inspector.runs import pack, positions
from winnow.inspector.sets import read_sets

PROMPT, NEW = 40, 14
SINK, BUDGET, RECENT = 1, 3, 2  # together less than the window of the models that have one
SIZES = f"sink={SINK}, budget={BUDGET}, recent={RECENT}, recent_mode='sliding', bootstrap=2, selector='attention'"
EVERY_5 = f"slowfast(trigger='periodic', interval=5, {SIZES})"
NEVER = f"slowfast(trigger='none', {SIZES})"
WEB = resources.files("winnow.inspector") / "web"
NODE = shutil.which("node")


@pytest.fixture
def ids():
    source = random.Random(3)
    return [source.randrange(3, 97) for _ in range(PROMPT)]


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2"])
def test_slow_steps_and_units_by_hand(ids, family):
    llm = LLM(small_model(family), prefill_chunk=7)
    trace = record(llm, ids, plan=EVERY_5, max_tokens=NEW, ignore_eos=True)
    assert [step.slow for step in trace.steps] == [None, *(number % 5 == 0 for number in range(1, NEW))]
    windows = llm.decoder.shape.windows
    for step in trace.steps[1:]:
        for layer, window in zip(step.layers, windows, strict=True):
            seen = min(step.fed[1], window or step.fed[1])
            assert layer.units_read == 2 * (seen if step.slow else SINK + BUDGET + RECENT)
            if step.slow:
                assert layer.read == ((step.fed[1] - seen, step.fed[1]),)
    [out] = llm.generate([ids], SamplingParams(max_tokens=NEW, ignore_eos=True), plan=EVERY_5)
    assert sum(step.units_read for step in trace.steps) == out.stats.units_read
    assert (sum(step.slow is True for step in trace.steps), NEW - 1) == (
        out.stats.slow_steps,
        out.stats.slow_steps + out.stats.fast_steps,
    )


def test_what_a_fast_step_read_is_what_the_reader_selected(ids):
    recorder = Recorder(LLM(small_model("llama"), prefill_chunk=7), ids, plan=EVERY_5, max_tokens=NEW, ignore_eos=True)
    for step in recorder.steps():
        if step.slow is not False or recorder.done == NEW:  # after the last one its state has gone
            continue
        for number, layer in enumerate(step.layers):
            reads = recorder._state.reader._layers[number].current
            packed = reads.buffers.positions  # [kv_heads, sink + budget]
            recent = range(step.fed[1] - RECENT, step.fed[1])
            assert set(positions(layer.read)) == {*packed.flatten().tolist(), *recent}


@pytest.mark.parametrize("plan", [EVERY_5, NEVER, f"streaming(sink=2, recent=9) + {NEVER}"])
def test_nothing_is_read_that_has_left_the_cache(ids, plan):
    """Copies outlive the window, or the sink and recent units, that theirs stood in."""
    recorder = Recorder(LLM(small_model("mistral"), prefill_chunk=7), ids, plan=plan, max_tokens=NEW, ignore_eos=True)
    before = [set() for _ in range(4)]
    fewer = 0
    for step in recorder.steps():
        if recorder.done == NEW:  # its state has gone
            break
        for layer, (cache, at) in enumerate(zip(recorder._state.caches, step.layers, strict=True)):
            read = set(positions(at.read))
            assert read <= before[layer] | set(positions(at.computed))
            assert all(position > step.fed[1] - 1 - WINDOW for position in read)
            fewer += len(read) < RECENT + BUDGET <= at.units_read // 2
            before[layer] = set(cache.live_positions().flatten().tolist())
    assert fewer > 0


@pytest.mark.parametrize("plan", ["full", "lazyllm(layers=[1], keep=0.4)", "streaming(sink=2, recent=9)"])
def test_plans_without_slow_steps_say_nothing_of_them(ids, plan):
    trace = record(LLM(small_model("llama")), ids, plan=plan, max_tokens=4, ignore_eos=True)
    assert {step.slow for step in trace.steps} == {None}


def test_older_versions_are_read_without_slow_steps(ids):
    trace = record(LLM(small_model("llama")), ids, plan=EVERY_5, max_tokens=8, ignore_eos=True)
    document = json.loads(json.dumps(trace.to_dict()))
    assert Trace.from_dict(document) == trace
    steps = [{name: value for name, value in step.items() if name != "slow"} for step in document["steps"]]
    second = {**document, "version": 2, "steps": steps}
    first = {**second, "version": 1, "sets": [pack(runs) for runs in read_sets(document["sets"])]}
    del first["snapshots"]
    for old in (first, second):
        read = Trace.from_dict(old)
        assert {step.slow for step in read.steps} == {None}
        assert [step.layers for step in read.steps] == [step.layers for step in trace.steps]


@pytest.mark.parametrize(("step", "slow"), [(1, "yes"), (1, 1), (0, True)])
def test_nonsense_about_slow_steps_is_refused(ids, step, slow):
    document = record(LLM(small_model("llama")), ids, plan=EVERY_5, max_tokens=3, ignore_eos=True).to_dict()
    document["steps"][step]["slow"] = slow
    with pytest.raises(InputError, match="says slow"):
        Trace.from_dict(document)


# A document of which the script needs no more than this: every element is the same kind of stub, by id.
STUB = """
const made = {};
const context = new Proxy({ texts: [] }, { get: (at, name) => name === "texts" ? at.texts
  : name === "fillText" ? (text) => at.texts.push(text)
  : name === "createImageData" ? (w, h) => ({ data: new Uint8Array(4 * w * h) }) : () => 0, set: () => true });
function stub(tag) {
  return { tag, style: { setProperty() {} }, dataset: {}, children: [], text: "", className: "", hidden: false,
    clientWidth: 900, clientHeight: 56, scrollLeft: 0, classList: { add() {}, remove() {}, toggle() {} },
    set textContent(text) { this.text = text; }, get textContent() { return this.text; },
    append(part) { this.children.push(part); }, replaceChildren(...parts) { this.children = parts; },
    setAttribute() {}, addEventListener() {}, getContext: () => context,
    getBoundingClientRect: () => ({ left: 0, top: 0, width: 900, height: 56 }) };
}
const document = { documentElement: stub("html"), createElement: stub,
  getElementById: (id) => id === "trace" ? { textContent: DATA } : (made[id] = made[id] || stub(id)) };
const window = {}, location = { hash: "#" + STEP }, addEventListener = () => {};
const matchMedia = () => ({ matches: false }), getComputedStyle = () => ({ getPropertyValue: () => "#102030" });
const innerWidth = 900, innerHeight = 900;
"""


def shown(trace, step, tmp_path):
    """What the page's script writes into its elements, opened at a step: [texts of a canvas, elements]."""
    data = json.dumps(json.dumps(trace.to_dict()))
    scripts = "\n".join((WEB / name).read_text(encoding="utf-8") for name in SCRIPTS)
    asks = """
      const tiles = made.tiles.children.map((tile) => tile.children.map((child) => child.text));
      const [sentence, generated] = [made.sentence.children, made.generated.children];
      console.log(JSON.stringify({ texts: context.texts, hidden: made.pace.hidden, sentence, generated, tiles }));"""
    file = tmp_path / "page.js"
    file.write_text(f"const DATA = {data}, STEP = {step};\n{STUB}\n{scripts}\n{asks}", encoding="utf-8")
    done = subprocess.run([NODE, file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(NODE is None, reason="there is no node to run the page's script")
@pytest.mark.parametrize("step", [10, 11])
def test_the_page_marks_slow_steps(ids, tmp_path, step):
    trace = record(LLM(small_model("llama")), ids, plan=EVERY_5, max_tokens=NEW, ignore_eos=True)
    seen = shown(trace, step, tmp_path)
    assert not seen["hidden"]
    assert seen["texts"].count("▾") == (1 if step == 10 else 2)  # the step that is shown has its figure there
    assert f"{trace.steps[step].units_read} units read" in seen["texts"]
    assert ("slow decode step" if trace.steps[step].slow else "fast decode step") in seen["sentence"][1]
    slowly = [part["text"] for part in seen["generated"] if isinstance(part, dict) and part["className"] == "slow"]
    assert slowly == [trace.tokens[trace.steps[number].fed[0]].text for number in (5, 10)]
    assert ["slow steps", "2", f"of {NEW - 1} decode steps"] in [tile[:3] for tile in seen["tiles"]]


@pytest.mark.skipif(NODE is None, reason="there is no node to run the page's script")
def test_the_page_says_nothing_of_slow_steps_where_there_are_none(ids, tmp_path):
    seen = shown(record(LLM(small_model("llama")), ids, plan="full", max_tokens=4, ignore_eos=True), 2, tmp_path)
    assert seen["hidden"]
    assert "▾" not in seen["texts"]
    assert seen["sentence"][1] == ", decode: "
    assert not any(tile[0] == "slow steps" for tile in seen["tiles"])


def test_the_page_explains_its_signs(ids):
    page = render(record(LLM(small_model("llama")), ids, plan=EVERY_5, max_tokens=2))
    assert 'id="pace"' in page
    assert "slow step: it looks everywhere" in page
