"""A whole text under full attention: hidden states of all its rows, how surprising tokens are, what layers look at."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from winnow.engine.job import Job, step
from winnow.errors import InputError
from winnow.kernels.sparse import Cells
from winnow.plan import Plan
from winnow.policies.prefill.base import Piece
from winnow.policies.prefill.minference import MInference
from winnow.runtime.decoder import Decoder
from winnow.runtime.forward import walk
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


def look_at(decoder: Decoder, ids: list[int], look: Callable[[Piece], bool | None]) -> None:
    """Compute a text in one piece, under full attention, and show what every layer without a window makes of it.

    look: returns True where it has seen enough, and the layers above are not computed. Raises InputError before any
    work where there is no such layer.
    """
    if None not in decoder.shape.windows:
        raise InputError("every layer of the model has a window, so none of them looks through a whole text")
    state, enough = new_sequence(decoder, Plan(), len(ids), len(ids), len(ids)), False

    def chooser(piece: Piece) -> Cells:
        nonlocal enough
        enough = bool(look(piece))
        return piece.everything(MInference.block)

    state.chooser = chooser
    try:
        with decoder.inferring():
            for _ in walk(decoder, [(state, ids)], [False]):
                if enough:
                    break
    finally:
        state.release()
