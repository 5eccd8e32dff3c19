"""`python -m benchmarks quality`: from records to choice, table and picture."""

import json

import pytest
from benchmarks.quality import header as module

from command_line import MADE_BY
from quality_data import save_data

FLAGS = ("-l", 1024, "-n", 1, "-w", 1, "--fed", 4, "-t", "niah_single", "-t", "banking77_options", "--uncommitted")
STREAMING = "streaming(sink=4, recent={1/4})"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return save_data(tmp_path_factory.mktemp("data"))


def test_run_choose_run_again_and_merge(bench, tiny, data, tmp_path):
    grid, records, chosen = (tmp_path / name for name in ("grid.toml", "a.jsonl", "chosen.json"))
    grid.write_text(f'[units]\nat_most = 0.5\nstreaming = ["{STREAMING}"]\npop = ["pop(cutoff=1)"]\n', encoding="utf-8")
    common = ("--data", data, "-m", tiny, *FLAGS)
    result = bench("quality", "run", records, "--split", "validation", "--grid", grid, *common, "--json")
    assert result.code == 0, result.err
    document = result.json
    assert (document["command"], document["complete"], document["refused"]) == ("quality run", True, [])
    assert document.keys() >= MADE_BY | {"weights_sha256", "split", "seed"}
    assert {(row["arm"], row["task"]) for row in document["scores"]} == {
        (arm, task)
        for arm in ("full", STREAMING, "pop(cutoff=1)")
        for task in ("niah_single", "banking77_options", "all")
    }
    lines = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
    assert lines[0]["kind"] == "header"
    assert len(lines) == 1 + 3 * (6 + 2)
    assert all(row["few"] for row in document["scores"])

    result = bench("quality", "choose", records, "--grid", grid, "--out", chosen)
    assert result.code == 0, result.err
    assert "streaming" in result.out
    [arm] = json.loads(chosen.read_text(encoding="utf-8"))["arms"]
    assert (arm["plan"], arm["cost"], arm["tried"]) == (STREAMING, "units", 1)
    assert arm["shares"]["units"] < 0.5

    tested, png = tmp_path / "b.jsonl", tmp_path / "b.png"
    result = bench("quality", "run", tested, "--split", "test", "--plans", chosen, *common, "--plot", png)
    assert result.code == 0, result.err
    assert png.read_bytes()[:4] == b"\x89PNG"
    assert "test, 1,024 tokens" in result.out
    assert "2*" in result.out
    result = bench("quality", "table", tested, "--json")
    assert {row["arm"] for row in result.json["scores"]} == {"full", STREAMING}
    compared = bench("quality", "table", tested, "--against", STREAMING, "--json").json
    assert compared["against"] == STREAMING
    rows = [row for kind in ("scores", "windows") for row in compared[kind] if row["arm"] == STREAMING]
    assert [row["difference"]["mean"] for row in rows] == [0.0] * len(rows)
    assert "less its" in bench("quality", "table", tested, "--against", STREAMING).out
    first, *others = tested.read_text(encoding="utf-8").splitlines(keepends=True)
    taken = next(line for line in others if '"kind": "answer"' in line)
    before, elsewhere = tmp_path / "before.jsonl", tmp_path / "elsewhere.jsonl"
    asked = {row["task"]: row["questions"] for row in result.json["scores"]}
    answer = json.loads(taken)
    for known in (answer, {**answer, "index": 99}, {**answer, "question": "other", "answers": []}):
        before.write_text(f"{first}{json.dumps(known)}\n", encoding="utf-8")
        left = bench("quality", "table", tested, "--but-for", before, "--json").json
        gone = (answer["task"], "all")
        assert all(row["questions"] == asked[row["task"]] - (row["task"] in gone) for row in left["scores"])
        assert left["windows"] == result.json["windows"]
    elsewhere.write_text(first.replace('"split": "test"', '"split": "validation"') + taken, encoding="utf-8")
    refused = bench("quality", "table", tested, "--but-for", elsewhere)
    assert (refused.code, "has split 'validation' and the records 'test'" in refused.err) == (2, True)
    result = bench("quality", "table", tested, "--against", "other")
    assert (result.code, "there is no answer of the arm 'other' to compare with: full; str" in result.err) == (
        2,
        True,
    )
    assert (bench("quality", "table", tested, records).code, bench("quality", "choose", tested).code) == (2, 2)


def test_arms_that_have_adapters(bench, data, tmp_path):
    plans, records = tmp_path / "arms.json", tmp_path / "a.jsonl"
    arms = [{"plan": "speed(cutoff=6)", "adapter": adapter} for adapter in ("needle-speed-6", None)]
    plans.write_text(json.dumps({"arms": arms}), encoding="utf-8")
    common = ("quality", "run", records, "--split", "test", "--data", data, "-m", "needle", "--plans", plans)
    result = bench(*common, "-l", 512, "-n", 1, "-w", 1, "--fed", 2, "-t", "niah_single", "--uncommitted", "--json")
    assert result.code == 0, result.err
    kl = {row["arm"]: row["kl"]["mean"] for row in result.json["windows"] if row["domain"] == "all"}
    assert kl["full"] == 0
    assert 0 < kl["speed(cutoff=6), needle-speed-6"] != kl["speed(cutoff=6)"] > 0
    [once] = {json.loads(line).get("adapter_sha256") for line in records.read_text().splitlines()} - {None}
    assert once == module.adapter_hash("needle-speed-6")
    plans.write_text(json.dumps({"arms": [{"plan": "full", "adapter": "./nowhere"}]}), encoding="utf-8")
    result = bench(*common, "-l", 512, "-n", 1, "-w", 0, "-t", "niah_single", "--uncommitted")
    assert (result.code, "nowhere" in result.err) == (2, True), result.err


def test_what_would_be_ignored_or_is_nothing_is_refused(bench, tiny, data, tmp_path):
    common = ("quality", "run", tmp_path / "a.jsonl", "--split", "test", "--data", data, "-m", tiny, "--uncommitted")
    for arguments, said in {
        (): "no arm but full attention",
        ("-p", "pop", "--cost", "rows"): "--cost: are of a grid",
        ("-p", "pop", "-n", 0, "-w", 0): "nothing to measure",
        ("-p", "pop", "-t", "gsm8k"): "no task of the protocol",
        ("-p", "pop", "-l", 256): "512 to 8192",
    }.items():
        result = bench(*common, *arguments)
        assert (result.code, said in result.err) == (2, True), result.err


def test_code_that_no_commit_has_is_refused(monkeypatch):
    told = {"status": " M src/winnow/plan.py", "log": "abc1234"}
    monkeypatch.setattr(module, "_git", lambda command, *others: told[command])
    assert module.revision(uncommitted=True) == "abc1234+"
    with pytest.raises(module.InputError, match=r"plan\.py"):
        module.revision(uncommitted=False)
    told["status"] = ""
    assert module.revision(uncommitted=False) == "abc1234"
