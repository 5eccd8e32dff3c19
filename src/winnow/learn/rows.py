"""Which rows of a conversation go through which layers when it is learnt under SPEED, and batches laid flat."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from winnow.errors import InputError
from winnow.learn.chat import BASE, Conversation
from winnow.policies.compute.anchors import anchor_positions
from winnow.policies.compute.turns import last_start

IGNORED = -100  # the label of a token that is not learnt


@dataclass(frozen=True)
class Segment:
    """The packed rows of one turn: positions of its anchors, then of its decode phase; the first `anchors` are anchors.

    answer: how many rows stand before the first supervised one.
    """

    positions: list[int]
    anchors: int
    answer: int


def segments(conversation: Conversation, anchors: str, decode_from: str) -> list[Segment]:
    """The rows of every assistant turn that go through the layers from the cutoff on: `A_k ∪ [h_k, e_k)`.

    Earlier turns, their answers included, are prompt to later ones.

    Args:
        anchors, decode_from: as in `speed`; "last:m" begins m tokens before the answer, "header" with its header.
    Raises:
        InputError: naming the conversation, where a prompt has no such anchors.
    Source:
        SPEED, arXiv:2605.06105, and the index builder of the authors' training code, which this follows.
    """
    found = []
    for turn in conversation.turns:
        last = last_start(decode_from, turn.answer)
        start = turn.start if last is None else last
        try:
            first = anchor_positions(anchors, start, conversation.system)
        except InputError as error:
            raise InputError(f"{conversation.where}: {error}") from error
        found.append(Segment([*first, *range(start, turn.end)], len(first), len(first) + turn.answer - start))
    return found


@dataclass(frozen=True)
class Batch:
    """Conversations side by side, without padding.

    input_ids: [1, rows]. lengths: rows of each conversation. upper: [upper rows], index of the rows that go on from the
    cutoff, turn after turn; upper_lengths: rows of each turn, upper_anchors: how many of them are anchors.
    labels: [upper rows], the token at the row itself where it is learnt, else IGNORED; never learnt is a turn's first.
    by_base: [upper rows], whether the model without adapters teaches the row's conversation.
    """

    input_ids: Tensor
    lengths: tuple[int, ...]
    upper: Tensor
    upper_lengths: tuple[int, ...]
    upper_anchors: tuple[int, ...]
    labels: Tensor
    by_base: Tensor

    @classmethod
    def of(cls, conversations: Sequence[Conversation], anchors: str, decode_from: str) -> "Batch":
        """Raises like `segments`."""
        lengths = tuple(len(each.ids) for each in conversations)
        ids = torch.cat([torch.frombuffer(each.ids, dtype=torch.int32) for each in conversations]).long()
        turns = [
            (begin, segment, each.teacher == BASE)
            for begin, each in zip(accumulate(lengths, initial=0), conversations, strict=False)
            for segment in segments(each, anchors, decode_from)
        ]
        upper = torch.tensor([begin + position for begin, segment, _ in turns for position in segment.positions])
        learnt = torch.tensor([i >= segment.answer for _, segment, _ in turns for i in range(len(segment.positions))])
        return cls(
            input_ids=ids[None],
            lengths=lengths,
            upper=upper,
            upper_lengths=tuple(len(segment.positions) for _, segment, _ in turns),
            upper_anchors=tuple(segment.anchors for _, segment, _ in turns),
            labels=ids[upper].where(learnt, IGNORED),
            by_base=torch.tensor([base for _, segment, base in turns for _ in segment.positions]),
        )

    def to(self, device: torch.device) -> "Batch":
        """The same batch there."""
        moved: dict[str, Any] = {name: each.to(device) for name, each in vars(self).items() if torch.is_tensor(each)}
        return replace(self, **moved)
