"""Attention over cells in plain torch, one block of rows after the other: any device, every option, bounded memory."""

import torch
from torch import Tensor

from winnow.kernels.sparse.cells import Cells
from winnow.kernels.sparse.reference import attend_masked


def attend_blocks(
    q: Tensor, k: Tensor, v: Tensor, cells: Cells, *, scale: float, softcap: float | None, sinks: Tensor | None
) -> Tensor:
    """The arguments and results of `attend_cells()`; units that no head of a block reads are left out."""
    parts = []
    for block in range(cells.seen.shape[1]):
        first, last = cells.bounds(block, len(q))
        mask = cells.mask(block, len(q), k.shape[1])
        some = mask.flatten(0, 1).any(0).nonzero().flatten()
        parts.append(
            attend_masked(
                q[first:last], k[:, some], v[:, some], mask[..., some], scale=scale, softcap=softcap, sinks=sinks
            )
        )
    return torch.cat(parts)
