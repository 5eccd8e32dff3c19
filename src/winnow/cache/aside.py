"""Hidden states of tokens that stopped at the entrance of a layer and may go on later: LazyLLM's Aux Cache."""

import copy

import torch
from torch import Tensor

GROWTH = 1.25  # the factor by which full memory grows


class Aside:
    """The inputs of one layer for some tokens of one sequence, in no particular order.

    hidden: [capacity, hidden], positions: [capacity] int64; the first `count` are live.
    """

    def __init__(self, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
        self.hidden = torch.empty(0, hidden, dtype=dtype, device=device)
        self.positions = torch.empty(0, dtype=torch.int64, device=device)
        self.count = 0
        self.high = 0  # the most live at once since memory was last given back

    @property
    def nbytes(self) -> int:
        """Bytes of memory that tokens have filled and that has not been given back: hidden states and positions."""
        return self.high * (self.hidden.shape[1] * self.hidden.itemsize + self.positions.itemsize)

    @property
    def live(self) -> Tensor:
        """[count] positions."""
        return self.positions[: self.count]

    def put(self, hidden: Tensor, positions: Tensor, room: int = 0) -> None:
        """Set tokens aside. hidden: [tokens, hidden]; positions: [tokens], none here yet; room: entries to reserve."""
        end = self.count + len(positions)
        if end > len(self.positions):
            self._resize(max(end, room, int(len(self.positions) * GROWTH)))
        self.hidden[self.count : end] = hidden
        self.positions[self.count : end] = positions
        self.count = end
        self.high = max(self.high, end)

    def gives_back(self, leaving: int) -> bool:
        """Whether memory is given back when so many leave."""
        return 2 * (self.count - leaving) < len(self.positions)

    def take(self, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Remove the live entries where `wanted` [count] bool; returns their hidden states and positions, a copy.

        The last entries fill the holes, so what moves is no more than what leaves; memory that is left more than half
        empty is given back.
        """
        taken = self.hidden[: self.count][wanted], self.live[wanted]
        left = self.count - len(taken[1])
        holes = wanted[:left].nonzero().flatten()
        movers = left + (~wanted[left:]).nonzero().flatten()
        self.hidden[holes] = self.hidden[movers]
        self.positions[holes] = self.positions[movers]
        self.count = left
        if self.gives_back(0):
            self._resize(left)
        return taken

    def clear(self) -> None:
        """Free everything."""
        self.count = 0
        self._resize(0)

    def fork(self) -> "Aside":
        """An independent copy."""
        twin = copy.copy(self)
        twin._resize(self.count)
        return twin

    def _resize(self, capacity: int) -> None:
        hidden = self.hidden.new_empty(capacity, self.hidden.shape[1])
        positions = self.positions.new_empty(capacity)
        hidden[: self.count], positions[: self.count] = self.hidden[: self.count], self.live
        self.hidden, self.positions, self.high = hidden, positions, self.count
