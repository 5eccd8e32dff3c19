"""A whole text under full attention: every row's hidden state, and how surprising its tokens are."""

from collections.abc import Iterator

import torch
from torch import Tensor

from winnow.engine.job import Job, step
from winnow.plan import Plan
from winnow.runtime.decoder import Decoder
from winnow.runtime.observer import Observer
from winnow.runtime.sequence import new_sequence
from winnow.runtime.surprisal import surprisal_of


class _Text(Job):
    """Keeps what the last rows have become."""

    hidden: Tensor

    def passed(self, hidden: Tensor) -> None:
        self.hidden = hidden

    def take(self, logits: Tensor) -> None:
        """All rows are wanted, not the last."""


def forward_pass(decoder: Decoder, ids: list[int], chunk: int, observer: Observer | None = None) -> Iterator[Tensor]:
    """A text under full attention, `chunk` tokens a step; yields [tokens of the step, hidden] after the last layer."""
    state = new_sequence(decoder, Plan(), len(ids), len(ids), chunk)
    state.observer = observer
    text = _Text(state, ids)
    while text.pending:
        step(decoder, [text], chunk)
        if text.error is not None:
            raise text.error
        yield text.hidden


def surprisals(decoder: Decoder, ids: list[int], chunk: int) -> Iterator[Tensor]:
    """-ln P of every token but the first under full attention, [tokens] float32 for every `chunk` tokens fed."""
    following = [torch.tensor(ids[at : at + chunk], device=decoder.device) for at in range(1, len(ids), chunk)]
    for hidden, tokens in zip(forward_pass(decoder, ids[:-1], chunk), following, strict=True):
        yield surprisal_of(decoder, hidden, tokens)
