"""`winnow compare --peer`: what it prints, and how each thing that can be wrong is said."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from command_line import WAYS_TO_PEERS
from winnow.cli.compare_peers import refuse_adapter
from winnow.cli.inputs import load_model
from winnow.cli.options import ModelOptions
from winnow.errors import InputError
from winnow.evaluation.peers.base import DIRECTORY
from winnow.evaluation.peers.registry import PEERS
from winnow.evaluation.peers.spelling import Spelling

FAKE = Path(__file__).parents[1] / "fake_peer.py"
FLAGS = ("--length", 400, "--examples", 2, "--task", "passkey", "--threads", 1)


class Fake:
    """A family whose options are what its spelling says."""

    script = str(FAKE)
    on_file = ()

    def loads(self, spelling: Spelling) -> str:
        return DIRECTORY

    def options(self, spelling: Spelling) -> dict[str, object]:
        return spelling.parameters


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setitem(PEERS, "fake", Fake())


@pytest.mark.usefixtures("fake", "forking")
def test_a_peer_that_crashes_leaves_what_was_finished(winnow, tiny, tmp_path):
    out, plot = tmp_path / "out.json", tmp_path / "out.png"
    peers = ("--peer", "fake", "--peer", "fake:broken(until=2, how='exit')")
    result = winnow("compare", "-m", tiny, *FLAGS, *peers, "--out", out, "--plot", plot)
    document = json.loads(out.read_text(encoding="utf-8"))
    broken = "fake:broken(until=2, how='exit')"
    assert result.code == 2
    assert f"error: {broken} was left out after 1 answers: its process ended with code 3: MemoryError" in result.err
    assert [(row["arm"], row["examples"]) for row in document["summary"]] == [("full", 2), ("fake", 2), (broken, 1)]
    assert [each["arm"] for each in document["arms"]] == ["full", "fake", broken]
    assert "winnow" in document["arms"][0]
    assert not document["complete"]
    full = next(record for record in document["records"] if record["arm"] == "full")
    assert full["cache_bytes"] == full["kept_units"] * 2 * 8 * 4
    assert full["peak_bytes"] > 10**8
    assert broken in result.out.replace("\n", "")
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("fake", "forking")
def test_a_document_of_ones_own(winnow, tiny, document):
    flags = ("--file", document, "--max-tokens", 4, "--threads", 1, "--peer", "fake", "--json")
    found = winnow("compare", "-m", tiny, *flags).json
    assert [(record["arm"], record["score"], len(record["token_ids"])) for record in found["records"]] == [
        ("full", None, 4),
        ("fake", None, 4),
    ]
    assert found["complete"]


@pytest.mark.usefixtures("forking")
def test_on_a_gguf_file_a_family_is_compared_with_at_its_best(winnow, tiny, monkeypatch):
    def load(options, **instead):
        llm = load_model(options, **instead)
        llm.source = tiny  # what Winnow's own arm loads
        return llm

    family = Fake()
    family.on_file = ("fake:a", "fake:b")
    monkeypatch.setitem(PEERS, "fake", family)
    monkeypatch.setattr("winnow.cli.inputs.load_model", load)
    result = winnow("compare", "-m", tiny, *FLAGS, "--peer", "fake")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert next(line for line in lines if line.startswith("fake at its best: ")).startswith(
        "fake at its best: TTFT 0.500 s (fake:a), "
    )
    assert any(line.startswith("full, of fake's best: ttft ") for line in lines)
    assert any(line.startswith("fake:b, of fake's best: ttft 1.00x") for line in lines)
    with pytest.raises(InputError, match="--adapter mine runs beside the weights here, so peers lack it"):
        refuse_adapter(load(ModelOptions(model=str(tiny), device="cpu")), "mine")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--peer", "vllm"), "peer 'vllm' is unknown; known: hf, kvpress, llama.cpp"),
        (("--peer", "hf", "--peer-python", "hf=/nowhere/python"), "hf=/nowhere/python: there is no such program"),
        (("--peer", "hf:offloaded", "--device", "cpu"), "hf:offloaded: the offloaded cache moves units"),
        (("--peer-python", f"hf={sys.executable}"), "--peer-python: is about --peer only"),
    ],
)
@pytest.mark.usefixtures("forking")
def test_what_cannot_be_compared_is_one_line(winnow, tiny, arguments, said):
    result = winnow("compare", "-m", tiny, *FLAGS, *arguments)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert said in result.err


@pytest.mark.parametrize(("module", "peer", "said"), WAYS_TO_PEERS)
def test_a_missing_peer_is_one_line_that_says_how_to_get_it(winnow, tiny, module, peer, said):
    if find_spec(module):
        pytest.skip(f"{module} is installed beside Winnow")
    result = winnow("compare", "-m", tiny, *FLAGS, "--peer", peer)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith(f"error: {peer}: No module named")
    assert said in result.err
