"""How much of a step prompts may take: by steps that are told how long they took, and in a service."""

import asyncio
from itertools import pairwise

import pytest

from http_calls import call, quiet
from winnow import SamplingParams
from winnow.engine.request import Completion, Output
from winnow.server import share as share_module
from winnow.server.share import LEAST, TIMES, Share
from winnow.stats import Stats

MOST = 512


class Steps:
    """An engine whose steps take what `seconds(answers, rows)` says, of rows of prompts beside so many answers."""

    def __init__(self, monkeypatch, seconds):
        self.max_step_tokens, self.running, self.idle, self._now = MOST, 0, False, 0.0
        self._seconds = seconds
        monkeypatch.setattr(share_module.time, "perf_counter", lambda: self._now)
        self.share = Share(self)

    def step(self, answers, prompts=0, *, idle=False):
        """A step with so many answers; prompts use all that there is. Returns their rows, and the seconds it took."""
        rows = self.max_step_tokens - answers if prompts else 0
        taken = self._seconds(answers, rows)
        self._now += taken
        self.running, self.idle = answers + prompts, idle
        self.share.stepped([Output(number, 0, [7], "") for number in range(answers)])
        return rows, taken


def affine(answers, rows):
    """10 ms and 2 for every answer, and half a millisecond for a row of a prompt."""
    return 0.010 + 0.002 * answers + 0.0005 * rows


def test_a_step_comes_to_take_twice_what_it_takes_alone(monkeypatch):
    steps = Steps(monkeypatch, affine)
    for answers in (4, 1):
        for _ in range(5):
            steps.step(answers)
        seen = [steps.step(answers, 1) for _ in range(40)]
        alone = affine(answers, 0)
        assert all(taken <= TIMES * alone + 1e-9 for _, taken in seen[-20:])
        assert seen[-1][0] >= 0.8 * alone / 0.0005  # and prompts have the rest of it
        assert all(after[0] <= 2 * before[0] for before, after in pairwise(seen))


def test_with_other_machines_and_plans_it_is_another_number(monkeypatch):
    found = []
    for slower in (1.0, 50.0):
        steps = Steps(monkeypatch, lambda answers, rows, slower=slower: slower * affine(answers, rows))
        for _ in range(3):
            steps.step(2)
        found.append([steps.step(2, 1)[0] for _ in range(30)])
    assert found[0] == found[1]


def test_where_no_answer_waits_a_prompt_has_all_rows(monkeypatch):
    steps = Steps(monkeypatch, affine)
    for _ in range(3):
        steps.step(3)
        steps.step(3, 1)
    steps.step(0, 1)  # the answers have ended; the step had been begun with them in mind
    assert steps.step(0, 1)[0] == MOST
    assert steps.max_step_tokens == MOST


def test_where_nothing_is_known_prompts_have_little(monkeypatch):
    steps = Steps(monkeypatch, affine)
    assert steps.step(0, 1)[0] == MOST  # of several prompts one is done, and its answer begins
    steps.step(1, 7)
    assert steps.step(1, 7)[0] == LEAST
    later = [steps.step(1, 7)[0] for _ in range(20)]
    assert LEAST <= later[-1] <= TIMES * affine(1, LEAST) / 0.0005


def test_answers_that_take_long_by_themselves_leave_prompts_the_least(monkeypatch):
    """A step is known with one answer; with twenty it takes longer than twice that, whatever prompts have."""
    steps = Steps(monkeypatch, affine)
    for _ in range(5):
        steps.step(1)
    assert [steps.step(20, 1)[0] for _ in range(30)][-1] == LEAST
    steps.step(20)
    steps.step(20)
    assert [steps.step(20, 1)[0] for _ in range(30)][-1] > 5 * LEAST


def test_a_pause_is_no_step(monkeypatch):
    steps = Steps(monkeypatch, affine)
    for _ in range(4):
        steps.step(2)
        steps.step(2, idle=True)
        steps._now += 1000.0
    assert max(steps.share._alone[2]) < 1.0


def test_one_slow_step_changes_nothing(monkeypatch):
    steps = Steps(monkeypatch, affine)
    for _ in range(5):
        steps.step(2)
    steps._now += 3.0
    steps.step(2)
    seen = [steps.step(2, 1)[1] for _ in range(30)]
    assert max(seen[10:]) <= TIMES * affine(2, 0) + 1e-9


def test_a_step_in_which_prompts_end_had_tokens_of_them(monkeypatch):
    """One that was under way, and one that has come and is done within the step."""
    steps = Steps(monkeypatch, affine)
    for _ in range(3):
        steps.step(2)
    steps.step(2, 1)
    for answers in (3, 4):
        steps._now += 1.0
        steps.step(answers)
    assert (list(steps.share._alone), max(steps.share._alone[2])) == ([2], pytest.approx(affine(2, 0)))
    steps.step(4)
    assert set(steps.share._alone) == {2, 4}


def test_an_answer_that_has_ended_is_not_counted(monkeypatch):
    steps = Steps(monkeypatch, affine)
    steps.step(2)
    steps.running = 1
    ended = Completion("", [7], "length", Stats())
    steps.share.stepped([Output(0, 0, [7], "", ended), Output(1, 0, [7], "")])
    assert steps.share._answers == {(1, 0)}


@pytest.mark.parametrize("max_step_ms", [None, 0.0, 3.0])
def test_whatever_the_limit_is_answers_are_the_same(new, llm, max_step_ms):
    service, app = new() if max_step_ms is None else new(max_step_ms=max_step_ms)
    prompts = ["ab" * (1 + 7 * number) for number in range(6)]
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    expected = [each.text for each in llm.generate(prompts, params)]
    limits = []
    step = service.background._engine.step

    def stepping():
        limits.append(service.engine.max_step_tokens)
        return step()

    service.background._engine.step = stepping

    async def all_of_them():
        bodies = [{"prompt": each, "max_tokens": 12, "ignore_eos": True, "temperature": 0} for each in prompts]
        return await asyncio.gather(*(call(app, "POST", "/v1/completions", body) for body in bodies))

    replies = asyncio.run(asyncio.wait_for(all_of_them(), 30))
    assert [each.json["choices"][0]["text"] for each in replies] == expected
    assert quiet(service)
    assert (len(set(limits)) > 1) == (max_step_ms is None)
    assert (service.engine._pace is not None) == (max_step_ms == 3.0)
    assert max(limits) <= service.chunk == 16
