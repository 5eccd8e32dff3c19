"""Which rows go on from the cutoff, and how batches are laid flat."""

from dataclasses import replace

import pytest
import torch

from speed_reference import SEVERAL, SINGLE, conversation, upper_rows
from winnow.errors import InputError
from winnow.learn.rows import IGNORED, Batch

TURNS = [(5, 6, 9), (12, 13, 16)]


@pytest.mark.parametrize(
    ("anchors", "rows"),
    [
        ("system", [[0, 1, 5, 6, 7, 8], [0, 1, 12, 13, 14, 15]]),
        ("bos", [[0, 5, 6, 7, 8], [0, 12, 13, 14, 15]]),
        ("none", [[5, 6, 7, 8], [12, 13, 14, 15]]),
        ("first:4", [[0, 1, 2, 3, 5, 6, 7, 8], [0, 1, 2, 3, 12, 13, 14, 15]]),
        ("last:2", [[3, 4, 5, 6, 7, 8], [10, 11, 12, 13, 14, 15]]),
    ],
)
def test_a_turn_takes_its_anchors_and_itself(anchors: str, rows: list[list[int]]) -> None:
    assert upper_rows(conversation(16, TURNS), anchors) == rows


def test_the_decode_phase_may_begin_some_tokens_before_the_answer() -> None:
    assert upper_rows(conversation(16, TURNS), "bos", "last:3") == [[0, *range(3, 9)], [0, *range(10, 16)]]
    assert upper_rows(conversation(16, TURNS), "bos", "last:7") == [[*range(9)], [0, *range(6, 16)]]


def test_all_prompt_tokens_may_be_anchors() -> None:
    assert upper_rows(conversation(16, TURNS), "all") == [list(range(9)), list(range(16))]


def test_rows_of_a_conversation_have_its_teacher() -> None:
    batch = Batch.of([SEVERAL, replace(SINGLE, teacher="base"), SEVERAL], "bos", "header")
    assert batch.by_base.tolist() == [False] * 22 + [True] * 9 + [False] * 22


def test_all_of_a_batch_goes_to_a_device() -> None:
    moved = vars(Batch.of([SINGLE], "bos", "header").to(torch.device("meta")))
    assert {each.device.type for each in moved.values() if torch.is_tensor(each)} == {"meta"}


@pytest.mark.parametrize("anchors", ["first:6", "system"])
def test_a_prompt_without_such_anchors_is_refused(anchors: str) -> None:
    with pytest.raises(InputError, match=f"the conversation.*{anchors}"):
        upper_rows(conversation(16, TURNS, system=None), anchors)


def test_a_batch_has_no_padding_and_no_label_reaches_over_a_border() -> None:
    batch = Batch.of([SEVERAL, SINGLE], "bos", "header")
    assert batch.input_ids.tolist() == [[*SEVERAL.ids, *SINGLE.ids]]
    assert batch.lengths == (30, 19)
    assert batch.upper_lengths == (5, 6, 11, 9)
    assert batch.upper_anchors == (1, 1, 1, 1)
    assert batch.upper[-9:].tolist() == [30, *range(30 + 11, 30 + 19)]
    learnt = [*SEVERAL.ids[7:9], *SEVERAL.ids[14:17], *SEVERAL.ids[22:30], *SINGLE.ids[13:19]]
    assert batch.labels[batch.labels != IGNORED].tolist() == learnt
    firsts = torch.tensor([0, *batch.upper_lengths[:-1]]).cumsum(0)
    assert (batch.labels[firsts] == IGNORED).all()
    assert not batch.by_base.any()
    # A supervised row comes right behind the row of the token before it.
    places = (batch.labels != IGNORED).nonzero()[:, 0]
    assert (batch.upper[places] == batch.upper[places - 1] + 1).all()
