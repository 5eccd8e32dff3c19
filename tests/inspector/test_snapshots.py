"""Snapshots say what every KV head held, whoever asks; sets of positions stay small; the page shows what they say."""

import json
import random
import shutil
import subprocess
from dataclasses import replace
from importlib import resources

import pytest
import torch

from covering import covered
from driving import advance
from models import small_model
from winnow import LLM, Plan
from winnow.cache.view import NOBODY
from winnow.cli.inspect_plot import shares
from winnow.engine.services import admit
from winnow.errors import InputError
from winnow.inspector import Recorder, Trace, record, render
from winnow.inspector.runs import count, flip, pack, positions, runs_of, unpack
from winnow.inspector.sets import SetTable, read_sets

PROMPT, NEW = 40, 8
HEADS = "random_heads(budget=9, chunk=6, stabilizers=3, local=4, width=8)"
PLANS = {
    HEADS: [6, 12, 18, 24, 30, 36, 40],
    HEADS.replace("local=4", "local=0, positions='original'"): [6, 12, 18, 24, 30, 36, 40],
    HEADS.replace("chunk=6", "chunk=None, decode_chunk=3"): [36, 40, 43, 46],
    HEADS.replace("local=4", "local=4, by_head='adaptive', by_layer='pyramid'"): [6, 12, 18, 24, 30, 36, 40],
    "streaming(sink=2, recent=9)": [40],
    "full": [40],
    "lazyllm(layers=[1, 3], keep=[0.5, 0.4])": [40],
}
WEB = resources.files("winnow.inspector") / "web"
NODE = shutil.which("node")


@pytest.fixture
def llm():
    return LLM(small_model("llama"), prefill_chunk=7)


@pytest.fixture
def ids():
    source = random.Random(3)
    return [source.randrange(3, 97) for _ in range(PROMPT)]


def positions_now(state):
    """Per layer, per KV head, the positions in the caches."""
    held = [cache.live_positions() for cache in state.caches]
    return [[row[row < NOBODY].tolist() for row in (each if each.dim() == 2 else each.expand(2, -1))] for each in held]


def replayed(llm, plan, tokens, moments):
    """What the caches hold at some moments, the runtime being stopped at each."""
    state, _ = admit(llm.decoder, None, Plan.parse(plan), tokens[:PROMPT], NEW, 512)
    found = []
    for moment in moments:
        while state.position < moment:
            end = moment if state.position < PROMPT else state.position + 1
            advance(llm.decoder, [(state, tokens[state.position : end])], decode=state.position >= PROMPT)
        found.append(positions_now(state))
    return found


@covered((("plan", "moments"), PLANS.items()), family=["llama", "mistral"])
def test_snapshots_are_what_the_caches_hold(ids, family, plan, moments):
    llm = LLM(small_model(family), prefill_chunk=7)
    trace = record(llm, ids, plan=plan, max_tokens=NEW, ignore_eos=True)
    assert [snapshot.known for snapshot in trace.snapshots] == moments
    said = [[[list(positions(runs)) for runs in heads] for heads in each.kept] for each in trace.snapshots]
    if "lazyllm" not in plan:  # which cannot be stopped in the middle of its prefill, nor fed the same again
        assert said == replayed(llm, plan, [token.id for token in trace.tokens], moments)
    prefill = next(snapshot for snapshot in trace.snapshots if snapshot.known == PROMPT)
    for at, heads in zip(trace.steps[0].layers, prefill.kept, strict=True):
        assert {p for runs in heads for p in positions(runs)} == set(positions(at.held))
        assert sum(map(count, heads)) == at.units_held


def test_heads_keep_their_budget_and_nothing_comes_back(llm, ids):
    trace = record(llm, ids, plan=HEADS, max_tokens=2, ignore_eos=True)
    for layer in range(4):
        for head in range(2):
            kept = [set(positions(snapshot.kept[layer][head])) for snapshot in trace.snapshots]
            assert [len(each) for each in kept] == [6, 9, 9, 9, 9, 9, 13]
            for before, after, snapshot in zip(kept, kept[1:], trace.snapshots, strict=False):
                assert {p for p in after if p < snapshot.known} <= before
    assert any(heads[0] != heads[1] for heads in trace.snapshots[-1].kept)


def test_the_chunk_size_does_not_show(ids):
    traces = [record(LLM(small_model("llama"), prefill_chunk=size), ids, plan=HEADS) for size in (1, 5, 512)]
    assert traces[0].snapshots == traces[1].snapshots == traces[2].snapshots


def test_an_unfinished_step_leaves_no_snapshot(llm, ids, monkeypatch):
    recorder = Recorder(llm, ids, plan=HEADS.replace("local", "decode_chunk=1, local"), max_tokens=NEW, ignore_eos=True)
    real = recorder._note

    def note(phase, token):
        if len(recorder._steps) == 2:
            raise KeyboardInterrupt
        return real(phase, token)

    monkeypatch.setattr(recorder, "_note", note)
    with pytest.raises(KeyboardInterrupt):
        list(recorder.steps())
    assert recorder._state.position == PROMPT + 2
    trace = recorder.trace()
    assert (len(trace.steps), trace.snapshots[-1].known) == (2, PROMPT + 1)


@pytest.mark.parametrize("plan", PLANS)
def test_json_gives_the_trace_back(llm, ids, plan):
    trace = record(llm, ids, plan=plan, max_tokens=NEW, ignore_eos=True)
    document = json.loads(json.dumps(trace.to_dict()))
    assert document["version"] == 3
    assert Trace.from_dict(document) == trace


def test_version_1_is_read_without_snapshots(llm, ids):
    trace = record(llm, ids, plan=HEADS, max_tokens=NEW, ignore_eos=True)
    document = trace.to_dict()
    assert any(isinstance(each, dict) for each in document["sets"])
    plain = [pack(runs) for runs in read_sets(document["sets"])]
    old = {name: value for name, value in document.items() if name != "snapshots"} | {"version": 1, "sets": plain}
    assert Trace.from_dict(json.loads(json.dumps(old))) == replace(trace, snapshots=())


@pytest.mark.parametrize("seed", range(20))
def test_flipping(seed):
    source = random.Random(seed)
    one, other = (set(source.sample(range(40), source.randrange(40))) for _ in range(2))
    runs, others = (runs_of([torch.tensor(list(each), dtype=torch.int64)]) for each in (one, other))
    assert set(positions(flip(runs, others))) == one ^ other
    assert flip(flip(runs, others), others) == runs
    assert unpack(pack(flip(runs, others))) == flip(runs, others)


def test_a_long_prompt_stays_small():
    """4 heads that keep 2048 of 16384 tokens, without any pattern, over 32 chunks: a quarter of a small model."""
    source, table, plain = random.Random(0), SetTable(), 0
    wanted = []
    for head in range(4):
        kept = []
        for known in range(512, 16385, 512):
            kept = sorted(source.sample([*kept, *range(known - 512, known)], min(known, 2048)))
            runs = runs_of([torch.tensor(kept)])
            index = table.add(runs, head)
            plain += len(json.dumps(pack(runs), separators=(",", ":")))
            wanted.append((index, runs))
    size = len(json.dumps(table.written, separators=(",", ":")))
    assert size < 250_000
    assert size < plain / 2
    read = read_sets(table.written)
    assert all(read[index] == runs for index, runs in wanted)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (["sets", 1], {"like": 1, "flip": [0, 1]}, "not before it"),
        (["sets", 1], {"like": -1, "flip": [0, 1]}, "not before it"),
        (["sets", 1], {"like": 0, "flip": [1]}, "odd number"),
        (["sets", 1], {"like": 0}, "'flip' is missing"),
        (["snapshots", 0, "kept"], [], "does not fit"),
        (["snapshots", 0, "kept", 0], [0], "does not fit"),
        (["snapshots", 0, "kept", 0, 0], 10_000, "damaged"),
        (["snapshots", 6, "known"], 30, "snapshot 6 of 30 known tokens"),
        (["snapshots", 1, "known"], 6, "after 6"),
        (["snapshots", 6, "known"], 1000, "snapshot 6 of 1000"),
        (["snapshots", 0], {}, "missing"),
    ],
)
def test_a_damaged_document_is_refused(llm, ids, path, value, says):
    document = json.loads(json.dumps(record(llm, ids, plan=HEADS, max_tokens=2, ignore_eos=True).to_dict()))
    *parents, key = path
    at = document
    for parent in parents:
        at = at[parent]
    at[key] = value
    with pytest.raises(InputError, match=says):
        Trace.from_dict(document)


def test_shares_by_hand(llm, ids):
    trace = record(llm, ids, plan="full", max_tokens=1)
    snapshots = (
        replace(trace.snapshots[0], known=6, kept=((((0, 1), (3, 6)), ()),) * 4),
        replace(trace.snapshots[0], known=10, kept=((((0, 1), (5, 7)), ((0, 10),)),) * 4),
    )
    trace = replace(trace, snapshots=snapshots)
    # Columns of 10 tokens in 4: [0, 2), [2, 5), [5, 7), [7, 10); after 6 tokens the third knows one of its own.
    assert shares(trace, 0, 0, 4).tolist()[1] == [0.5, 0, 1, 0]
    first = shares(trace, 0, 0, 4)[0]
    assert first[:3].tolist() == [0.5, 2 / 3, 1]
    assert first[3] != first[3]  # not a number: nothing is known there
    assert shares(trace, 2, 1, 10).tolist()[1] == [1] * 10
    assert shares(trace, 2, 1, 10)[0][:6].tolist() == [0] * 6


@pytest.mark.skipif(NODE is None, reason="there is no node to run the page's script")
@covered(plan=PLANS, columns=[7, 40])
def test_the_page_reads_what_the_trace_has(llm, ids, plan, columns, tmp_path):
    trace = record(llm, ids, plan=plan, max_tokens=NEW, ignore_eos=True)
    document = trace.to_dict()
    (tmp_path / "trace.json").write_text(json.dumps(document), encoding="utf-8")
    script = tmp_path / "kept.js"
    script.write_text(
        f"const {{ Cells }} = require({str(WEB / 'cells.js')!r});"
        f"const trace = JSON.parse(require('fs').readFileSync({str(tmp_path / 'trace.json')!r}));"
        "const cells = new Cells(trace);"
        "const each = (n, f) => Array.from({ length: n }, (_, i) => f(i));"
        f"const shares = each(4, (layer) => each(2, (head) => cells.shares(layer, head, {columns})));"
        f"const holders = each({PROMPT}, (token) => cells.holders(token));"
        "console.log(JSON.stringify({ sets: cells.sets, compresses: cells.compresses, shares, holders }));",
        encoding="utf-8",
    )
    said = json.loads(subprocess.run([NODE, script], capture_output=True, check=True, text=True).stdout)
    assert [unpack(each) for each in said["sets"]] == read_sets(document["sets"])
    assert said["compresses"] == ("heads" in plan or "streaming" in plan)
    for layer in range(4):
        for head in range(2):
            wanted = torch.tensor(shares(trace, layer, head, columns)).nan_to_num(-1)
            torch.testing.assert_close(torch.tensor(said["shares"][layer][head], dtype=torch.float64), wanted)
    for token, found in enumerate(said["holders"]):
        known = [snapshot for snapshot in trace.snapshots if token < snapshot.known]
        heads = [[runs for layer in snapshot.kept for runs in layer] for snapshot in known]
        assert found == [
            [snapshot.known, sum(token in positions(runs) for runs in each)]
            for snapshot, each in zip(known, heads, strict=True)
        ]


def test_the_page_has_the_script_and_the_place_for_it(llm, ids):
    page = render(record(llm, ids, plan=HEADS, max_tokens=2))
    assert "class Kept" in page
    assert 'id="keeping"' in page
    assert '"snapshots":[{"known":6' in page
