"""`python -m benchmarks file`: what it prints and writes, going on after a stop, and what is refused."""

import json
import sys
from pathlib import Path

import benchmarks.file_command as command
import pytest

from command_line import MADE_BY
from winnow.cli import inputs
from winnow.evaluation.peers.base import SOURCE, Arm
from winnow.evaluation.peers.registry import PEERS
from winnow.evaluation.peers.spelling import Spelling

FAKE = Path(__file__).parents[1] / "fake_peer.py"
FLAGS = ("--length", 8, "--length", 30, "--turns", 2, "--threads", 1)


class Fake:
    """llama.cpp in two formats, which are as slow as they say."""

    script = str(FAKE)
    on_file = ("llama.cpp:file(slow=2)", "llama.cpp:file(slow=4)")

    def loads(self, spelling: Spelling) -> str:
        return SOURCE

    def options(self, spelling: Spelling) -> dict[str, object]:
        return spelling.parameters


@pytest.fixture
def gguf(monkeypatch, tiny):
    """A model that says it comes from a GGUF file, and arms of Winnow's that compute nothing."""

    def load(options):
        llm = load_model(options)
        llm.source = tiny / "model.gguf"
        return llm

    def plan_arms(plans, chunk, weights="auto", note=""):
        return [Arm(f"{plan}{note}", sys.executable, FAKE, {}, SOURCE) for plan in plans]

    load_model = inputs.load_model
    monkeypatch.setattr(inputs, "load_model", load)
    monkeypatch.setattr(command, "plan_arms", plan_arms)
    monkeypatch.setitem(PEERS, "llama.cpp", Fake())
    return ("file", tiny, *FLAGS, "--peer", "llama.cpp")


def test_a_row_per_arm_beside_the_best_of_llama_cpp(bench, gguf, document, tmp_path):
    out = tmp_path / "out.json"
    result = bench(*gguf, "--text", document, "--plan", "streaming(sink=4, recent=8)", "--steps", 3, "--out", out)
    found = json.loads(out.read_text(encoding="utf-8"))
    arms = ["full", "streaming(sink=4, recent=8)", "full, dense", *Fake.on_file]
    assert result.code == 0, result.err
    assert list(dict.fromkeys(row["arm"] for row in found["summary"])) == arms
    assert len(found["records"]) == 2 * 2 * len(arms)
    assert found["llama.cpp at its best"]["30"]["prefill_s"] == {"arm": "llama.cpp:file(slow=2)", "value": 60}
    first = found["summary"][0]
    assert (first["arm"], first["length"], first["ratios"]) == ("full", 8, {"prefill_s": 0.5, "token_s": 0.5})
    assert found.keys() >= MADE_BY
    assert (found["complete"], found["command"], found["machine"]["threads"]) == (True, "file", 1)
    assert "llama.cpp at its best: prefill of 8: 16 s (llama.cpp:file(slow=2))" in " ".join(result.out.split())


def test_what_was_measured_is_gone_on_with(bench, gguf, document, tmp_path):
    out = tmp_path / "out.json"
    flags, steps = (*gguf, "--text", document, "--out", out), ("--steps", 3)
    assert bench(*flags, *steps).code == 0
    before = json.loads(out.read_text(encoding="utf-8"))
    before["records"] = [{**each, "prefill_s": 7} for each in before["records"] if each["arm"] != "full"]
    out.write_text(json.dumps(before), encoding="utf-8")
    assert bench(*flags, *steps, "--resume").code == 0
    after = json.loads(out.read_text(encoding="utf-8"))
    assert {each["prefill_s"] for each in after["records"] if each["arm"] != "full"} == {7}
    assert [each["prefill_s"] for each in after["records"] if each["arm"] == "full"] == [8, 30] * 2
    assert after["complete"]
    refused = bench(*flags, "--resume", "--steps", 4)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "was measured with another ids, steps; give another --out" in refused.err


def test_what_cannot_be_measured_is_one_line(bench, gguf, document, tmp_path, monkeypatch):
    text = ("--text", document)
    empty = tmp_path / "empty.json"
    empty.write_text("{}")
    for arguments, said in (
        ((*text, "--length", 4000), "tokens; 4,003 are needed"),
        ((*text, "--length", 40000), "more than the model's 32,768 positions"),
        ((*text, "--resume"), "--resume goes on with what --out FILE holds"),
        ((*text, "--resume", "--out", empty), "holds no measurement of `benchmarks file`"),
        (("--text", tmp_path / "none"), "cannot read"),
    ):
        result = bench(*gguf, "--steps", 3, *arguments)
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), result.err
        assert said in result.err
    monkeypatch.undo()
    assert "does not come from a GGUF file" in bench("file", gguf[1], *text, "--peer", "hf").err
