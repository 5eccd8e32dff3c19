"""`python -m benchmarks turns`: what is compared with what, and a chat on a tiny model."""

import json

from benchmarks.turns import TurnTaken, summarise_turns
from benchmarks.turns_command import COLUMNS

from command_line import MADE_BY

SAME = (None, True, False)
FULL, STREAMING = "full", "streaming(sink=2, recent=20)"
ASKED = ("-l", 120, "--turns", 3, "--new", 5, "--repeats", 2, "-p", FULL, "-p", STREAMING)


def test_a_turn_is_compared_with_the_first_of_its_chat():
    seconds = {0: (4.0, 1.0, 2.0), 1: (8.0, 1.0, 1.0)}
    taken = [
        TurnTaken("full", chat, turn, 100 + 10 * turn, 90 * (turn > 0), 80 // (1 + turn), ttft, 1000 * turn, SAME[turn])
        for chat, each in seconds.items()
        for turn, ttft in enumerate(each)
    ]
    [row] = summarise_turns([*taken, TurnTaken("streaming", 0, 0, 100, 0, 80, 1.0, 0, None)])
    assert (row.plan, row.chats, row.first_s, row.later_s) == ("full", 2, 6.0, 1.0)
    assert (row.of_first, row.worst, row.new, row.held) == (0.1875, 0.5, 25, 2000)
    assert row.rows == (40 + 26) / 2 / 80
    assert (row.compared, row.same) == (4, 2)


def test_table_and_json(bench, tiny, tmp_path):
    out = tmp_path / "turns.json"
    result = bench("turns", "-m", tiny, *ASKED, "--again", 2, "--deterministic", "--prefill-chunk", 16, "--out", out)
    assert result.code == 0, result.err
    told = json.loads(out.read_text(encoding="utf-8"))
    assert (told["command"], told["complete"], len(told["records"])) == ("turns", True, 12)
    assert told.keys() >= MADE_BY
    assert all((each["cached"] > 100) == (each["turn"] > 0) for each in told["records"])
    assert all(each["same"] is (True if each["turn"] else None) for each in told["records"])
    assert all(heading.split("\n")[0] in result.out for heading in COLUMNS)


def test_a_chat_stays_below_what_it_may_hold(bench, tiny, tmp_path):
    """The least bytes in which the longest turn fits; less is refused, with the figures."""
    out = tmp_path / "turns.json"
    asked = [*ASKED[:-2], "--again", 0, "--out", out]
    assert bench("turns", "-m", tiny, *asked).code == 0
    needed = max(each["held"] for each in json.loads(out.read_text(encoding="utf-8"))["records"])
    result = bench("turns", "-m", tiny, *asked, "--max-cache-mib", 0.7 * needed / 2**20)
    assert result.code == 0, result.err
    held = [each["held"] for each in json.loads(out.read_text(encoding="utf-8"))["records"]]
    assert max(held) <= 0.7 * needed
    result = bench("turns", "-m", tiny, *asked, "--max-cache-mib", 0.001)
    assert result.code == 2
    assert "max_cache_bytes" in result.err
