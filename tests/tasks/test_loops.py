"""When an answer counts as stuck in a loop."""

import pytest

from winnow.tasks.loops import loops


@pytest.mark.parametrize(
    ("tokens", "stuck"),
    [
        ([7, 7, 7], True),
        ([5, 6, 7, 7, 7], True),
        ([1, 2, 3, 4, 5] * 3, True),
        ([9, 8, *[1, 2, 3, 4, 5] * 3], True),
        ([*[1, 2, 3, 4, 5] * 3, 1, 2], True),  # cut by the limit in the middle of a round
        ([1, 2] * 3, True),
        ([7, 7], False),  # twice only
        ([1, 2, 3, 4, 5] * 2, False),
        ([*[1, 2, 3, 4, 5] * 2, 1, 2, 3, 4], False),  # one token short of three times
        ([7, 7, 7, 8], False),  # it got out
        ([1, 2, 1, 2, 1, 3], False),
        ([1, 2, 3, 1, 2, 4, 1, 2, 5], False),
        ([], False),
        ([7], False),
    ],
)
def test_three_times_in_a_row_up_to_the_end(tokens, stuck):
    assert loops(tokens, "length") is stuck


def test_an_answer_that_ended_by_itself_never_loops():
    assert not loops([7, 7, 7], "stop")
    assert not loops([7, 7, 7], None)
