"""A stream goes on elsewhere: what refuses it for a moment is asked again."""

import asyncio

import pytest

from winnow.server import attempt
from winnow.server.attempt import Attempt
from winnow.server.errors import ApiError
from winnow.server.replicas import Asked, Head, Lost

ASKED = Asked("POST", "/go_on/v1/completions", {}, b"{}", None)


class Answers:
    """Replicas that answer so, one after another: an error is raised, a status begins a reply."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def ask(self, asked):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        yield Head(answer, {})


def go_on(*answers):
    replicas, lost = Answers(*answers), []
    asyncio.run(Attempt(replicas, lambda: lost.append(1)).go_on(ASKED))
    return len(replicas.answers), len(lost)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(attempt, "RETRY_S", 0)


def test_a_full_queue_is_no_end():
    """Neither a replica's, nor the one of who stands before the replicas."""
    full = ApiError(429, "too many wait", code="queue_full")
    assert go_on(429, full, 429, full, 200) == (0, 0)
    assert go_on(Lost(), full, Lost(), 429, 200) == (0, 2)


def test_what_refuses_it_for_good_is_its_end():
    with pytest.raises(ApiError, match="no other could go on") as error:
        go_on(429, 400, 200)
    assert error.value.status == 503
    with pytest.raises(ApiError, match="no replica"):
        go_on(ApiError(503, "there is no replica"), 200)
    with pytest.raises(ApiError, match="4 replicas have gone"):
        go_on(*[Lost()] * 5)
