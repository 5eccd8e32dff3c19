"""Progress: how much is done, and how long the rest takes, on a terminal and without one."""

import io
import json
import os
import re
import time

import pytest
from rich.console import Console
from rich.text import Text

from winnow.cli import terminal

LEFT = re.compile(r", about 0:0[01]:\d\d left$")


def half_done(meter: terminal.Meter) -> None:
    for done in range(1, 6):
        time.sleep(0.02)
        meter.advance(1)
        meter.note(f"{done} of 1000 answers")


def test_without_a_terminal_a_line_says_how_long_the_rest_takes(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "QUIET_S", 0.0)
    with terminal.Meter("answering", 1000) as meter:
        half_done(meter)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "1 of 1000 answers"  # one tells no speed
    assert all(LEFT.search(line) for line in lines[1:])
    assert [LEFT.sub("", line) for line in lines[1:]] == [f"{done} of 1000 answers" for done in range(2, 6)]


def test_a_bar_says_how_long_the_rest_takes(monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(terminal, "console", lambda **keywords: screen)
    with terminal.Meter("answering", 1000) as meter:
        half_done(meter)
    shown = Text.from_ansi(screen.file.getvalue()).plain
    assert "5 of 1000 answers" in shown
    assert re.search(r" 0:0[01]:\d\d left", shown)


@pytest.mark.parametrize("total", [None, 10])
def test_the_total_may_be_told_later(total, capsys):
    with terminal.Meter("training", total) as meter:
        meter.advance(4, 10)
        assert meter._bar.tasks[0].percentage == 40


def test_a_name_that_is_no_utf8_is_json_and_what_stood_there_stays(tmp_path):
    out = tmp_path / "out.json"
    terminal.write_json(out, {"typed": os.fsdecode(b"caf\xe9.txt")})
    assert json.loads(out.read_text())["typed"].encode("utf-8", "surrogateescape") == b"caf\xe9.txt"
    with pytest.raises(UnicodeEncodeError):
        terminal.write_text(out, "\udce9")
    assert out.read_text()


def test_what_an_interrupt_leaves_is_collected(capsys):
    def made(progress):
        for number in range(3):
            progress(1)
            yield number
        raise KeyboardInterrupt

    assert terminal.collect("counting", 9, "9 numbers", made, together=2) == [0, 1, 2]
    assert capsys.readouterr().err == "2 of 9 numbers\n"
