"""Which units every block of rows reads, head by head."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Cells:
    """What rows that stand at the end of the units read of them, as far as it is not behind their own unit.

    seen: [q_heads, blocks, cells] bool, which cells the rows of a block read. rows: of a block; the last may have
    fewer. width: units of a cell. Cells are counted back from the first row's unit, where one begins: `front` units are
    missing from the first of them.
    """

    seen: Tensor
    rows: int
    width: int
    front: int = 0

    def units(self, block: int, stop: int) -> Tensor:
        """[q_heads, stop] bool: which of the first `stop` units a block of rows reads."""
        return self.seen[:, block].repeat_interleave(self.width, -1)[:, self.front : self.front + stop]

    def mask(self, block: int, rows: int, units: int) -> Tensor:
        """[q_heads, rows of the block, units up to its last row's]: which row reads which, of `rows` rows in all."""
        first, last = self.bounds(block, rows)
        past = units - rows
        own = torch.arange(past + first, past + last, device=self.seen.device)
        causal = own[:, None] >= torch.arange(past + last, device=self.seen.device)
        return self.units(block, past + last)[:, None] & causal

    def bounds(self, block: int, rows: int) -> tuple[int, int]:
        """The first row of a block and the one after its last."""
        return block * self.rows, min((block + 1) * self.rows, rows)

    def pairs(self, rows: int, units: int) -> int:
        """How many pairs of a query and a key are read, over all query heads."""
        device = self.seen.device
        edges = torch.arange(self.seen.shape[-1] + 1, device=device) * self.width - self.front
        first = torch.arange(self.seen.shape[1], device=device) * self.rows
        count = (rows - first).clamp(max=self.rows)[:, None]
        own = (units - rows + first)[:, None]  # the unit of the first row
        edges = edges.clamp(0, units)
        # Of all units before an edge, rows whose own lies before it see those up to their own, and the others all.
        short = (edges - own).clamp(min=0).minimum(count)
        before = short * (own + 1) + short * (short - 1) // 2 + (count - short) * edges
        return int((self.seen.sum(0) * before.diff(dim=-1)).sum())
