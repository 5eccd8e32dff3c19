"""`python -m benchmarks peers`: a record per arm, and what cannot be measured."""

from importlib.util import find_spec

import pytest

from command_line import MADE_BY, WAYS_TO_PEERS


@pytest.mark.parametrize(("module", "peer", "said"), WAYS_TO_PEERS)
def test_a_missing_peer_is_one_line_that_says_how_to_get_it(bench, module, peer, said):
    if find_spec(module):
        pytest.skip(f"{module} is installed beside Winnow")
    result = bench("peers", "--shape", "needle-like", "--length", 64, "--peer", peer)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith(f"error: {peer}: No module named")
    assert said in result.err


@pytest.mark.usefixtures("forking")
def test_a_record_per_arm(bench):
    flags = ("--shape", "needle-like", "--length", 100, "--dtype", "float32", "--turns", 1, "--threads", 1)
    document = bench("peers", *flags, "--peer", "hf", "--json").json
    assert document.keys() >= MADE_BY
    full, hf = document["records"]
    assert (full["arm"], hf["arm"], len(full["seconds"])) == ("full", "hf", 5)
    assert full["cache_bytes"] == hf["cache_bytes"] == 8 * 2 * (100 + 8) * 2 * 32 * 4
    assert hf["off"] < 1e-4
    assert full["ratios"]["hf"] == pytest.approx(1 / hf["ratios"]["full"])
    assert (document["complete"], document["machine"]["threads"]) == (True, 1)


@pytest.mark.usefixtures("forking")
def test_a_model_instead_of_a_shape(bench, tiny):
    flags = ("--model", tiny, "--dtype", "float32", "--turns", 1, "--threads", 1, "--peer", "hf")
    document = bench("peers", *flags, "--length", 50, "--json").json
    assert [record["kept_units"] for record in document["records"]] == [2 * 2 * (50 + 8)] * 2
    assert document["records"][1]["off"] < 1e-4
    refused = bench("peers", *flags, "--shape", "needle-like")
    assert "--shape: is about random weights, not about --model" in refused.err
    assert "more than the 32,768 positions" in bench("peers", *flags, "--length", 40000).err


def test_it_needs_a_peer_and_room(bench):
    assert "neither --peer nor --weights" in bench("peers").err
    assert "positions" in bench("peers", "--peer", "hf", "--length", 200000).err
