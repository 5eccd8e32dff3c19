"""Plans beside presses: what both keep, head by head, and what that loses; against kvpress itself where it is."""

import gzip
import json
import re

import numpy as np
import pytest
from benchmarks.presses import NOTHING, measure_presses, summarise_presses
from benchmarks.windows import Window

from peer_engines import PYTHONS, needs_kvpress
from tiny import save_tiny_model, tiny_model
from winnow import LLM, Plan
from winnow.evaluation.fidelity import log_probs_along

IDS = tuple(5 + place * 37 % 200 for place in range(60))
LAYERS = HEADS = 2


class Other:
    """In place of a process of kvpress: keeps the newest units, but for the second head of the last layer, which keeps
    the oldest; and goes on as full attention does."""

    def __init__(self, llm):
        self.llm = llm

    def run(self, press, ids, prompt, progress):
        with self.llm.session(max_tokens=len(ids) - prompt) as session:
            session.feed(ids[:prompt])
            rows = list(log_probs_along(session, ids[prompt:]))
        progress(len(ids))
        mask = np.ones((LAYERS, HEADS, prompt), bool)
        if press != NOTHING:
            mask[:, :, :-16] = False
            mask[1, 1] = mask[1, 1, ::-1]
        return mask, rows, 1000 if press == NOTHING else 300


def test_what_both_keep_is_counted_by_head():
    llm, done = LLM(tiny_model()), []
    plans = {"Newest(0.5)": Plan.parse("streaming(sink=4, recent=20)"), "All": Plan()}
    [group] = measure_presses(llm, Other(llm), plans, [Window("d", 0, "t", IDS)], 4, progress=done.append)
    newest, everything = group
    # Of 24, sinks among them, 16 of the newest; the head that keeps the oldest shares the 4 sinks.
    assert newest.kept == 24
    assert newest.kept_theirs == 16
    assert newest.shared == ((16 / 24, 16 / 24), (16 / 24, 4 / 24))
    assert everything.shared == ((16 / 56, 16 / 56), (16 / 56, 16 / 56))
    assert newest.theirs.fidelity.kl == 0
    assert newest.ours.fidelity.kl > 0 == everything.ours.fidelity.kl
    assert (newest.theirs.cache_bytes, newest.theirs.full_bytes) == (300, 1000)
    unit = llm.decoder.shape.unit_bytes
    assert everything.ours.cache_bytes == everything.ours.full_bytes == LAYERS * HEADS * (60 - 1) * unit
    assert newest.ours.cache_bytes == LAYERS * HEADS * 24 * unit
    assert sum(done) == 6 * len(IDS)
    json.dumps(newest.to_dict())


def test_rows_are_means_over_windows_and_differences_are_paired():
    llm = LLM(tiny_model())
    chosen = [Window("d", index, "t", IDS[index:]) for index in range(3)]
    found = list(measure_presses(llm, Other(llm), {"P": Plan.parse("streaming(sink=4, recent=20)")}, chosen, 4))
    [row] = summarise_presses([each for group in found for each in group])
    assert (row.windows, row.heads, row.below) == (3, 4, 4)
    assert row.shared == pytest.approx((3 * 16 + 4) / 24 / 4)
    assert row.least == pytest.approx(4 / 24)
    assert row.cache_share_theirs == pytest.approx(0.3)
    assert row.apart.mean == row.kl.mean > row.kl_theirs.mean == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--press", "KeyRerotationPress(KnormPress(0.5))"], "rotates keys anew.*ask for what is in it"),
        (["--press", "RandomPress(0.5)"], "there is no plan for RandomPress"),
        (["--length", "64", "--fed", "64"], "--fed 64 leaves no prompt of --length 64"),
        (["--press", "KnormPress(0.5)", "--peer-python", "kvpress=/nowhere/python"], "there is no such program"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_any_work(bench, tmp_path, arguments, message):
    result = bench("presses", "--data", tmp_path, *arguments)
    assert result.code == 2
    assert re.search(message, result.err)


@needs_kvpress
def test_real_presses_keep_what_their_plans_keep(bench, tmp_path):
    save_tiny_model(tmp_path / "model")
    (tmp_path / "texts").mkdir()
    text = "\n\n".join(f"Paragraph {number} of a text about {number * 37 % 91} things." for number in range(60))
    record = json.dumps({"id": 1, "text": text})

    with gzip.open(tmp_path / "texts" / "books.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(record + "\n")
    out = tmp_path / "presses.json"
    presses = ["SnapKVPress(0.5, 16)", "KeyDiffPress(0.5)", "AdaKVPress(KeyDiffPress(0.5))", "KVzipPress(0.5)"]
    result = bench(
        "presses", "--data", tmp_path / "texts", "-m", tmp_path / "model", "-l", 200, "--fed", 4, "-n", 2,
        *(part for press in presses for part in ("--press", press)), "--out", out,
        "--peer-python", f"kvpress={PYTHONS['kvpress']}",
    )  # fmt: skip
    assert result.code == 0, result.err
    rows = json.loads(out.read_text())["summary"]
    assert [row["press"] for row in rows] == presses
    *others, kvzip = rows
    assert kvzip["kept"] == kvzip["kept_theirs"] + 1  # its last token comes after the choice here
    for row in others:
        assert row["shared"] > 0.98, row
        assert abs(row["apart"]["mean"]) < 1e-4, row
    assert rows[0]["cache_share"] == rows[0]["cache_share_theirs"] == pytest.approx((98 + 3) / (196 + 3))
    # Heads that share a budget are masked there, and hold everything.
    assert rows[2]["cache_share_theirs"] == 1 > rows[2]["cache_share"]
