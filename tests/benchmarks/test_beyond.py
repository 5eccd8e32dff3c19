"""`python -m benchmarks beyond`: what is asked, counted and written; never how long it took."""

import json
import shutil

import pytest
from benchmarks.beyond import DEPTHS
from benchmarks.beyond_command import COLUMNS

from command_line import MADE_BY

POSITIONS = 512
INFLLM = "infllm(recent=128, sink=16, block=16, top=4, rows=64) + mapped(resident_mib=1)"


@pytest.fixture
def short(tiny, tmp_path):
    """The tiny model with fewer positions."""
    directory = shutil.copytree(tiny, tmp_path / "short")
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    (directory / "config.json").write_text(json.dumps(config | {"max_position_embeddings": POSITIONS}))
    return directory


def test_keys_are_asked_for_beyond_the_models_positions(bench, short, tmp_path):
    out = tmp_path / "beyond.json"
    plans = [INFLLM, "streaming(sink=4, recent=64)"]
    arms = [part for plan in plans for part in ("-p", plan)]
    result = bench("beyond", "-m", short, "--times", 2, "-n", 1, "-t", "number", *arms, "--out", out)
    assert result.code == 0, result.err
    told = json.loads(out.read_text(encoding="utf-8"))
    assert (told["command"], told["complete"], told["task"], told["positions"]) == ("beyond", True, "number", POSITIONS)
    assert told.keys() >= MADE_BY
    assert len(told["records"]) == len(plans) * len(DEPTHS)
    assert all(heading.split("\n")[0] in result.out for heading in COLUMNS)
    infllm, streaming = told["summary"]
    assert [infllm["plan"], infllm["length"], infllm["times"]] == [INFLLM, 2 * POSITIONS, 2]
    assert [*infllm["by_depth"]] == [*map(str, DEPTHS)]
    assert 0 < infllm["pairs"] < 1
    assert streaming["pairs"] is None
    assert infllm["total_bytes"] <= 2**20 + infllm["aux_bytes"]
    for each in told["records"]:
        assert POSITIONS < each["stats"]["prompt_tokens"] <= 2 * POSITIONS


def test_plans_that_end_where_the_positions_do_are_refused(bench, short):
    result = bench("beyond", "-m", short, "--times", 2, "-p", "quest(page=16, budget=64)")
    assert (result.code, "exceed the model's 512 positions" in result.err) == (2, True)


def test_tasks_without_a_depth_are_refused(bench, short):
    result = bench("beyond", "-m", short, "--times", 2, "-t", "common_words")
    assert (result.code, "common_words has no needle" in result.err) == (2, True)
