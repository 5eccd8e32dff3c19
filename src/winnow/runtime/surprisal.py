"""How surprising the tokens of a text are to the model that reads it, for policies that keep units by it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from winnow.runtime.decoder import Decoder

LOGIT_ROWS = 64  # logits of so many tokens at a time: a row is the whole vocabulary


def surprisal_of(decoder: Decoder, hidden: Tensor, tokens: Tensor) -> Tensor:
    """-ln P(token | row), [rows] float32. hidden: [rows, hidden] after the last layer; tokens: [rows] ids."""
    with decoder.inferring():
        pieces = [
            -decoder.logits(rows).log_softmax(-1).gather(-1, wanted[:, None])[:, 0]
            for rows, wanted in zip(hidden.split(LOGIT_ROWS), tokens.split(LOGIT_ROWS), strict=True)
        ]
    return torch.cat(pieces)


@dataclass
class Surprise:
    """The surprisal of the tokens of one sequence since units were last evicted by it.

    repeated: of the repetition of each, see `Score`. pieces: a tensor per step. last: [1, hidden], the last row, which
    says how surprising the next token is.
    """

    repeated: bool
    pieces: list[Tensor] = field(default_factory=list)
    last: Tensor | None = None

    def note(self, decoder: Decoder, hidden: Tensor, tokens: Sequence[int]) -> None:
        """Take in the rows of a step, hidden: [tokens, hidden] after the last layer."""
        ids = torch.tensor(tokens, device=hidden.device)
        if self.repeated:
            self.pieces.append(surprisal_of(decoder, hidden, ids))
            return
        rows = hidden[:-1] if self.last is None else torch.cat((self.last, hidden[:-1]))
        known = surprisal_of(decoder, rows, ids[len(ids) - len(rows) :]) if len(rows) else hidden.new_empty(0).float()
        self.pieces.append(torch.cat((known.new_full((len(ids) - len(rows),), torch.inf), known)))
        self.last = hidden[-1:].clone()

    def take(self) -> Tensor:
        """What has been noted since the last time, [tokens] float32; where nothing says how surprising the first token
        is, infinity or, of repetitions, the highest value."""
        noted, self.pieces = torch.cat(self.pieces), []
        return torch.cat((noted.max()[None], noted[:-1])) if self.repeated else noted

    @property
    def nbytes(self) -> int:
        """Bytes of what it holds."""
        return sum(each.nbytes for each in [*self.pieces, *([] if self.last is None else [self.last])])

    def fork(self) -> "Surprise":
        """An independent copy."""
        return replace(self, pieces=list(self.pieces))
