"""`python -m benchmarks busy`: what is counted, what the table shows, what is refused; never how long it took."""

import json

import pytest
import torch
from benchmarks.busy import ALL, ARMS, ONE, WATCHED, Turn, measure_busy, spinning, summarise_busy
from benchmarks.busy_command import COLUMNS

from command_line import MADE_BY
from tiny import tiny_model
from winnow import LLM
from winnow.kernels.launch import numba_missing

pytestmark = pytest.mark.skipif(numba_missing() is not None, reason="the kernels need Numba")


@pytest.fixture(autouse=True)
def two_threads():
    torch.set_num_threads(2)


def test_every_arm_does_all_turns_and_leaves_threads_as_they_were():
    llm, told = LLM(tiny_model()), []
    found = list(measure_busy(llm, 20, new=5, repeats=2, processes=1, progress=told.append))
    for taken in found:
        assert {(turn.arm, turn.busy) for turn in taken} == {(arm, busy) for arm in ARMS for busy in (False, True)}
        assert all(len(turn.seconds) == 5 for turn in taken)
        assert all(turn.fewer == (5 if turn.arm == ONE else 0) for turn in taken if turn.arm != WATCHED)
    assert len(told) == 2 * 2 * len(ARMS)
    assert torch.get_num_threads() == 2
    assert llm.decoder.threads is not None


def test_other_processes_end_with_the_block(monkeypatch):
    from subprocess import Popen

    started = []
    monkeypatch.setattr("benchmarks.busy.subprocess.Popen", lambda *given: started.append(Popen(*given)) or started[-1])

    def interrupted():
        with spinning(2):
            assert [process.poll() for process in started] == [None, None]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert all(process.returncode for process in started)


def test_the_summary_compares_within_a_turn():
    seconds = {ALL: (2.0, 10.0), ONE: (3.0, 3.5), WATCHED: (2.0, 4.0)}
    turns = [
        Turn(arm, busy, (scale * seconds[arm][busy],) * 2, fewer=int(arm == WATCHED and busy))
        for scale in (1.0, 2.0, 3.0)
        for arm in ARMS
        for busy in (False, True)
    ]
    watched, everything, one = summarise_busy(turns)
    assert (everything.quiet_s, everything.quiet_spread_s, everything.busy_s) == (4.0, 2.0, 20.0)
    assert [row.slowdown for row in (watched, everything, one)] == [2.0, 5.0, 1.75]
    assert [row.quiet_of_all for row in (watched, everything, one)] == [1.0, 1.0, 1.5]
    assert (watched.fewer_quiet, watched.fewer_busy) == (0.0, 0.5)


def test_table_and_json(bench, tiny, tmp_path):
    out = tmp_path / "busy.json"
    result = bench("busy", "-m", tiny, "-l", 9, "--new", 3, "--repeats", 2, "--out", out)
    assert result.code == 0, result.err
    document = json.loads(out.read_text(encoding="utf-8"))
    assert (document["command"], document["complete"], document["new"]) == ("busy", True, 3)
    assert document.keys() >= MADE_BY
    assert [row["arm"] for row in document["summary"]] == list(ARMS)
    assert len(document["records"]) == 2 * 2 * len(ARMS)
    assert all(heading.split("\n")[0] in result.out for heading in COLUMNS)


def test_one_thread_leaves_nothing_to_compare(bench, tiny):
    result = bench("busy", "-m", tiny, "--threads", 1)
    assert (result.code, "--threads 2" in result.err) == (2, True)
