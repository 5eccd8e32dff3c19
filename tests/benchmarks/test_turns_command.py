"""`python -m benchmarks turns`: what is compared with what, and a chat on a tiny model."""

import json

from benchmarks.turns import TurnTaken, summarise_turns
from benchmarks.turns_command import COLUMNS

from command_line import MADE_BY


def test_a_turn_is_compared_with_the_first_of_its_chat():
    seconds = {0: (4.0, 1.0, 2.0), 1: (8.0, 1.0, 1.0)}
    taken = [
        TurnTaken("full", chat, turn, 100 + 10 * turn, 90 * (turn > 0), ttft, 1000 * turn)
        for chat, each in seconds.items()
        for turn, ttft in enumerate(each)
    ]
    [row] = summarise_turns([*taken, TurnTaken("streaming", 0, 0, 100, 0, 1.0, 0)])
    assert (row.plan, row.chats, row.first_s, row.later_s) == ("full", 2, 6.0, 1.0)
    assert (row.of_first, row.worst, row.new, row.retained) == (0.1875, 0.5, 25, 2000)


def test_table_and_json(bench, tiny, tmp_path):
    out = tmp_path / "turns.json"
    result = bench("turns", "-m", tiny, "-l", 120, "--turns", 3, "--new", 5, "--repeats", 2, "-p", "full", "-p",
                   "streaming(sink=2, recent=20)", "--out", out)  # fmt: skip
    assert result.code == 0, result.err
    told = json.loads(out.read_text(encoding="utf-8"))
    assert (told["command"], told["complete"], len(told["records"])) == ("turns", True, 12)
    assert told.keys() >= MADE_BY
    assert all((each["cached"] > 100) == (each["turn"] > 0) for each in told["records"])
    assert all(heading.split("\n")[0] in result.out for heading in COLUMNS)
