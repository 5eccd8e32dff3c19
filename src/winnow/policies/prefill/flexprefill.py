"""FlexPrefill: every head looks for what it reads anew, in one of two ways, up to a share of its attention."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from winnow.kernels.sparse import Cells
from winnow.parameters import Count, Natural, Share
from winnow.policies.base import Services
from winnow.policies.prefill.base import Block, Chooser, Chunked, Piece, pooled


@dataclass(frozen=True)
class FlexPrefill(Chunked):
    """Read as many blocks as hold a share of the attention, found by pooled queries or by columns and diagonals.

    gamma: the share; 1: everything is read. tau: up to this distance of a head's two estimates it goes by pooled
    queries. min_budget: tokens, in whole blocks, that columns and diagonals have each at least. block: rows, and units,
    of a block. chunk: tokens of a prompt for which is chosen at once; a multiple of `block`.

    P is the attention of the chunk's last `block` rows. A head's estimates are P, summed over blocks of units, and the
    softmax of its mean query with the mean key of every block. Their distance is the root of the Jensen-Shannon
    divergence. At `tau` or farther, the head reads the blocks of the columns and of the diagonals that P is largest on:
    n // block + 1 of them, if it takes the n best columns (diagonals) to come above gamma. Below, of all pairs of a
    block of rows and one of units before it, the best by the softmax over mean queries and mean keys, as long as these
    do not sum up to more than gamma times the blocks of rows; beside `min_budget` of columns and diagonals. The first
    column and the diagonal are always read. Up to two blocks of units, or up to `min_budget`, all are.

    In the authors' code a prompt is one chunk. Diagonals of blocks are summed over as there, counted from the earliest.

    Source: Lai et al., FlexPrefill, arXiv:2502.20766, section 3 and algorithms 1 to 3, and the authors' code, whose
    defaults these are but for `chunk`.
    """

    gamma: Share = 0.9
    tau: Annotated[float, Ge(0)] = 0.1
    min_budget: Natural = 512
    block: Block = 128
    chunk: Count = 2048

    name = "flexprefill"
    source = "arXiv:2502.20766, section 3"
    off: ClassVar = {"gamma": 1.0}
    trial: ClassVar = {"gamma": 0.4, "tau": 0.1, "min_budget": 4, "block": 2, "chunk": 8}

    def chooser(self, services: Services) -> Chooser:
        return self.choose

    def choose(self, piece: Piece) -> Cells:
        """The blocks that rows read."""
        block, least = self.block, max(1, -(-self.min_budget // self.block))
        if self.gamma == 1 or piece.units <= max(2, least) * block:
            return piece.everything(block)
        front, causal = piece.front(block), piece.causal(block)
        last = min(block, piece.rows)
        columns, diagonals = (each / last for each in piece.attention_of_last(last))
        diagonals = diagonals.flip(-1)  # counted from the earliest
        by_block = _summed(columns, block, front)
        keys = pooled(piece.keys, block, front)
        mean = piece.queries[:, -last:].float().mean(1, keepdim=True)
        guess = piece.logits(mean, keys)[:, 0].softmax(-1)
        pools = _distance(guess, by_block) < self.tau
        counts = [
            torch.where(pools, least, self._covering(each).clamp(least)).clamp(max=causal.shape[1])
            for each in (columns, diagonals)
        ]
        far = _summed(diagonals, block, front).flip(-1)  # by distance in blocks
        seen = _best(by_block, counts[0])[:, None] | _by_distance(_best(far, counts[1]), causal)
        if pools.any():
            pairs = piece.logits(pooled(piece.queries, block), keys).masked_fill(~causal, float("-inf")).softmax(-1)
            seen |= self._best_pairs(pairs) & pools[:, None, None]
        return Cells(seen & causal, block, block, front)

    def _covering(self, shares: Tensor) -> Tensor:
        """[heads, units] -> [heads]: blocks of so many of the best as come above gamma."""
        ranked = shares.sort(-1, descending=True).values.cumsum(-1)
        return ((ranked <= self.gamma).sum(-1) + 1) // self.block + 1

    def _best_pairs(self, pairs: Tensor) -> Tensor:
        """[heads, blocks of rows, blocks of units] bool: the best of all, up to gamma for each block of rows."""
        ranked, index = pairs.flatten(1).sort(dim=-1, descending=True, stable=True)
        chosen = ranked.cumsum(-1) <= self.gamma * pairs.shape[1]
        return torch.zeros_like(chosen).scatter_(-1, index, chosen).view_as(pairs)


def _summed(x: Tensor, block: int, front: int) -> Tensor:
    """[heads, units] -> [heads, blocks]."""
    return F.pad(x, (front, -(x.shape[1] + front) % block)).unflatten(-1, (-1, block)).sum(-1)


def _best(scores: Tensor, counts: Tensor) -> Tensor:
    """[heads, blocks] bool: the first and the best others, so many of each head."""
    most = int(counts.max())
    rank = torch.arange(most, device=scores.device) < counts[:, None]
    ranked = scores.index_fill(-1, torch.tensor(0, device=scores.device), torch.inf)
    index = ranked.sort(dim=-1, descending=True, stable=True).indices[:, :most]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, index, rank)


def _by_distance(chosen: Tensor, causal: Tensor) -> Tensor:
    """[heads, distances] bool -> [heads, blocks of rows, blocks of units]: those at a distance that is chosen."""
    rows, units = causal.shape
    own = torch.arange(units - rows, units, device=chosen.device)
    apart = own[:, None] - torch.arange(units, device=chosen.device)
    return chosen[:, apart.clamp(min=0)] & causal


def _distance(first: Tensor, second: Tensor) -> Tensor:
    """The root of the Jensen-Shannon divergence of distributions [heads, n]."""
    middle = (first + second) / 2
    both = sum((torch.xlogy(each, each) - torch.xlogy(each, middle)).sum(-1) for each in (first, second))
    return (both / 2).clamp(min=0).sqrt()  # type: ignore[union-attr]
