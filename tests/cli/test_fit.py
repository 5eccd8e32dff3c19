"""`winnow fit`: its table and its JSON, that it loads nothing, and one line where something is wrong."""

import re
import time

import pytest

import forked
from command_line import Call
from tiny import POSITIONS
from winnow import LLM
from winnow.cli import fit as command
from winnow.cli import machine
from winnow.models.report import weights_report
from winnow.plan import Plan
from winnow.policies.registry import POLICIES

GIB = 2**30
PLANS = ["--plan", "streaming(sink=4, recent=64)", "--plan", "h2o(budget=64)"]


def test_the_catalogue_beside_full_attention(winnow: Call, tiny):
    figures = winnow("fit", "--model", tiny, "--length", 2000, "--memory", 1, "--json").json
    llm = LLM(tiny, device="cpu")
    assert figures["weights_bytes"] == weights_report(llm.model).bytes
    assert figures["memory_bytes"] == GIB
    assert (figures["length"], figures["new"], figures["prefill_chunk"]) == (2000, 128, llm.prefill_chunk)
    shown = {row["plan"]: row for row in figures["plans"]}
    assert next(iter(shown)) == "full"
    refused = [name for name in POLICIES if name not in shown and not POLICIES[name].identity]
    assert set(refused) <= {"quantized", "hf_quantized", "static_prune"}  # for wider heads, for more layers
    with llm.engine(max_cache_bytes=shown["full"]["units"] + shown["full"]["beside"]) as engine:
        assert engine.add([5] * 2000)
    for row in figures["plans"]:
        always = figures["weights_bytes"] + figures["libraries_bytes"]
        assert row["total"] == always + row["units"] + row["beside"] + row["working"]
        assert row["fits"] == (row["total"] <= GIB)
        if row["limit"] == "positions":
            assert row["longest"] == Plan.parse(row["plan"]).room(llm.decoder.shape, 128)


def test_the_table_says_what_it_says(winnow: Call, tiny):
    made = winnow("fit", "--model", tiny, "--length", 2000, "--new", 64, *PLANS, "--memory", 16)
    assert made.code == 0
    assert "2,000 tokens, and 64 of an answer" in made.out
    for words in (
        "full",
        "streaming(sink=4, recent=64)",
        "any",
        "positions",
        "yes",
        "weights",
        "libraries",
        "16.0 GiB",
    ):
        assert words in made.out
    assert "all that this process has loaded" in made.out
    assert not made.err
    told = "gates that no plan places stand at shares of the layers here, and may stand higher on the weights"
    assert told not in " ".join(made.out.split())
    made = winnow("fit", "--model", tiny, "--length", 2000, "-p", "fastkv", "--memory", 16)
    assert told in " ".join(made.out.split())


def test_memory_is_what_the_machine_has(winnow: Call, tiny, monkeypatch):
    monkeypatch.setattr(command, "available_bytes", lambda: 123)
    figures = winnow("fit", "--model", tiny, "--length", 5, *PLANS, "--json").json
    assert figures["memory_bytes"] == 123
    assert {(row["fits"], row["longest"], row["limit"]) for row in figures["plans"]} == {(False, 0, "loading")}


def test_what_fits_and_what_limits(winnow: Call, tiny, monkeypatch):
    monkeypatch.setattr(command, "resident_bytes", lambda: 2**20)
    figures = winnow("fit", "--model", tiny, "--length", POSITIONS, *PLANS, "--memory", 64, "--json").json
    full, streaming, _ = figures["plans"]
    assert (full["fits"], full["longest"], full["limit"]) == (False, POSITIONS + 1 - 128, "positions")
    far = winnow("fit", "--model", tiny, "--length", 10**30, "--memory", 64, "--json").json["plans"]
    assert [row["plan"] for row in far if row["fits"]] == ["streaming", "locret", "random_heads"]
    assert (streaming["fits"], streaming["longest"], streaming["limit"]) == (True, None, None)
    assert full["units"] is full["total"] is None
    always = figures["weights_bytes"] + figures["libraries_bytes"]
    little = (always + 3 * 2**20) / GIB
    [full] = winnow("fit", "-m", tiny, "-l", 100, "--plan", "full", "--memory", little, "--json").json["plans"]
    assert full["limit"] == "memory"
    assert 0 < full["longest"] < POSITIONS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--length", 0], "Must be >= 1"),
        (["--length", "1.5"], "1.5 is no whole number"),
        (["--length", 10, "--new", 0], "Must be >= 1"),
        (["--length", 10, "--memory", 0], "Must be > 0"),
        (["--length", 10, "--memory", "inf"], "is no amount of memory"),
        (["--length", 10, "--memory", "nan"], ""),
        (["--length", 10, "--plan", "strming"], "did you mean streaming?"),
        (["--length", 10, "--plan", "speed(cutoff=9)"], "above the model's 2 layers"),
        (["--length", 10, "--plan", "speed(anchors='last:50')"], "--length 10"),
        (["--length", 10, "--weights", "packed"], "holds no quantised weights"),
        (["--length", 10, "--dtype", "int3"], "dtype 'int3' is unknown"),
        (["--length", 10, "--device", "cpu"], "--device"),
        ([], "--length"),
    ],
)
def test_one_clear_error(winnow: Call, tiny, arguments, message):
    made = winnow("fit", "--model", tiny, *arguments)
    assert made.code == 2
    assert not made.out
    [line] = made.err.splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_a_model_that_is_not_there(winnow: Call, tmp_path):
    made = winnow("fit", "--model", tmp_path / "none", "--length", 5)
    assert (made.code, made.out) == (2, "")
    assert re.fullmatch(r"error: .* is not a directory; give .*\n", made.err)


def test_the_memory_of_a_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "STATUS", tmp_path / "status")
    monkeypatch.setattr(machine, "GROUP", tmp_path)
    (tmp_path / "meminfo").write_text("MemTotal:       9000 kB\nMemAvailable:   5000 kB\n")
    (tmp_path / "status").write_text("VmHWM:\t 700 kB\nVmRSS:\t 300 kB\n")
    assert machine.available_bytes() == 5300 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.available_bytes() == 5300 * 1024
    (tmp_path / "memory.max").write_text(f"{1024 * 4000}\n")
    (tmp_path / "memory.current").write_text(f"{1024 * 1000}\n")
    assert machine.available_bytes() == 3300 * 1024
    stat = f"anon 1\nfile 9\ninactive_anon 5\ninactive_file {1024 * 400}\nactive_file {1024 * 100}\n"
    (tmp_path / "memory.stat").write_text(stat)  # files that have been read give way
    assert machine.available_bytes() == 3800 * 1024


def test_a_process_of_its_own_has_libraries(tiny):
    began = time.monotonic()
    [made] = forked.run([["-m", "winnow", "fit", "--model", tiny, "--length", 100, "--json"]])
    assert made.code == 0, made.err
    assert '"limit": "positions"' in made.out
    assert time.monotonic() - began < 30


def test_plans_are_those_of_the_catalogue():
    for name in POLICIES:
        assert Plan.parse(name) == Plan(**{POLICIES[name].verb: POLICIES[name]()})
