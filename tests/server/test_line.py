"""Places outside a full queue, by a clock of the test."""

from types import SimpleNamespace

import pytest

from winnow.engine.request import Completion, Output
from winnow.server import line as line_module
from winnow.server.line import LONGEST_S, Line
from winnow.stats import Stats

ENDED = Output(0, 0, [1], "a", Completion("a", [1], "length", Stats()))
GOING = Output(1, 0, [1], "a")


@pytest.fixture
def clock(monkeypatch):
    """A list with the time."""
    now = [100.0]
    monkeypatch.setattr(line_module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def engine():
    return SimpleNamespace(idle=False)


@pytest.fixture
def line(engine, clock):
    line = Line(engine)
    line.stepped([GOING])
    return line


def ends(line, clock, count, apart_s):
    for _ in range(count):
        clock[0] += apart_s
        line.stepped([GOING, ENDED])


def test_those_refused_come_back_as_fast_as_answers_end(line, clock):
    ends(line, clock, 50, 2.0)
    assert [line.place_s() for _ in range(5)] == [1, 3, 5, 7, 9]
    clock[0] += 5.0
    assert line.place_s() == 6  # behind those, and not anew


def test_a_request_of_several_samples_is_one_place(line, clock):
    for _ in range(50):
        clock[0] += 2.0
        line.stepped([GOING, *(Output(0, index, [1], "a", ENDED.completion) for index in range(4))])
    assert [line.place_s() for _ in range(3)] == [1, 3, 5]


def test_a_line_that_has_passed_begins_anew(line, clock):
    ends(line, clock, 50, 0.01)
    first = [line.place_s() for _ in range(301)]
    assert (first[0], first[-1]) == (1, 4)
    clock[0] += 1000.0
    assert line.place_s() == 1


def test_before_anything_has_ended_all_come_back_soon(line, clock):
    line.stepped([GOING])
    assert [line.place_s() for _ in range(3)] == [1, 1, 1]


def test_nobody_waits_for_long(line, clock):
    ends(line, clock, 5, 45.0)
    assert [line.place_s() for _ in range(3)] == [1, 46, LONGEST_S]
    assert line.place_s() == LONGEST_S


def test_answers_that_end_together_count_each(line, clock):
    clock[0] += 4.0
    line.stepped([ENDED])
    for _ in range(100):
        clock[0] += 4.0
        line.stepped([ENDED] * 4)
    times = [line.place_s() for _ in range(41)]
    assert 30 <= times[-1] - times[0] <= 50  # one a second, where four end every four seconds


def test_time_without_anything_to_do_does_not_count(line, clock, engine):
    ends(line, clock, 20, 2.0)
    engine.idle = True
    ends(line, clock, 1, 2.0)
    engine.idle, clock[0] = False, 9999.0
    line.stepped([GOING])
    ends(line, clock, 20, 2.0)
    assert [line.place_s() for _ in range(3)] == [1, 3, 5]
