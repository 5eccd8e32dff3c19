"""Prefills and tokens after them on a text: who runs when, what is made of the times, and going on."""

import sys
from pathlib import Path

import pytest
from benchmarks.peers_file import Timed, best_of_llama, measure_file, summarise_file

from winnow.evaluation.peers.base import DIRECTORY, Arm
from winnow.evaluation.peers.weights import Weights

FAKE = Path(__file__).parents[1] / "fake_peer.py"
WEIGHTS = Weights({DIRECTORY: Path("model")}, "float32")
IDS = list(range(100))


def fake(label: str, **options: object) -> Arm:
    return Arm(label, sys.executable, FAKE, options)


def test_arms_take_turns_and_what_is_done_is_left_out():
    arms = [fake("a"), fake("b", slow=3)]
    found = list(measure_file(WEIGHTS, arms, IDS, [10, 40], steps=4, turns=3, done={("b", 0)}))
    assert [(each[0].arm, each[0].turn) for each in found] == [("a", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    short, long = found[1]
    assert (short.length, long.length, long.prefill_s, long.seconds) == (10, 40, 120, (3, 6, 6, 6))
    assert (long.cache_bytes, long.about) == (44, {"fake": "1.0"})
    assert Timed.from_dict(long.to_dict()) == long


def timed(arm: str, turn: int, prefill_s: float, *seconds: float) -> Timed:
    return Timed(arm, turn, 8, prefill_s, seconds, cache_bytes=turn, peak_bytes=None, about={})


def test_ratios_are_of_llama_cpps_best_in_each_figure():
    found = [
        timed("llama.cpp:q4_0", 0, 9, 1, 1),
        timed("llama.cpp:bf16", 0, 4, 3, 3),
        timed("full", 0, 1, 1, 9),  # a step that takes long counts in its turn's mean, 5
        timed("full", 1, 2, 2, 2),
        timed("full", 2, 9, 2, 2),
    ]
    rows = summarise_file(found, ["full", "llama.cpp:q4_0", "llama.cpp:bf16"])
    assert [row.arm for row in rows] == ["full", "llama.cpp:q4_0", "llama.cpp:bf16"]
    full = rows[0]
    assert (full.prefill_s, full.token_s, full.turns, full.steps, full.cache_bytes) == (2, 2, 3, 6, 2)
    assert full.ratios == {"prefill_s": 0.5, "token_s": 2}
    assert (full.prefill_spread_s, full.token_spread_s) == (2, 0.75)
    assert {name: each.arm for name, each in best_of_llama(rows, 8).items()} == {
        "prefill_s": "llama.cpp:bf16",
        "token_s": "llama.cpp:q4_0",
    }
    [alone] = summarise_file(found[2:3], ["full"])
    assert alone.ratios == {}


@pytest.mark.parametrize("length", [8, 9])
def test_where_no_llama_cpp_has_run_there_is_no_best(length):
    rows = summarise_file([timed("full", 0, 1, 1, 1)], ["full"])
    assert best_of_llama(rows, length) == {}
