"""XAttention: sums along antidiagonals say which blocks of the attention map of a prompt matter."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from winnow.kernels.sparse import Cells
from winnow.parameters import Count, Share
from winnow.policies.base import Services
from winnow.policies.prefill.base import Block, Blocked, Chooser, Piece


@dataclass(frozen=True)
class XAttention(Blocked):
    """Read the blocks of a prompt's attention map whose antidiagonals promise the most attention.

    threshold: share of the promised attention that the blocks of a row of blocks hold together; 1: all are read.
    stride: from one antidiagonal to the next; a divisor of `block`. block: rows, and units, of a block.

    `stride` consecutive queries and keys are one group each. The queries of group a, in reverse order, and the keys of
    group b are multiplied in pairs and added up, which is the sum along an antidiagonal of their part of the map:
    s(a, b) = sum_i q_(a stride + stride - 1 - i) . k_(b stride + i) / (stride sqrt(d)), for b <= a. A softmax over b,
    summed over a block, is what the block promises. The first block and the rows' own are read; then the others, the
    best first, until those that are read hold `threshold` of the sum. Every query head chooses by itself, every block
    of rows too, so that nothing depends on how a prompt is cut into chunks: these are whole blocks.

    After units were evicted blocks are of what is held, counted back from the first row's own.

    Source: Xu et al., XAttention, arXiv:2503.16428, section 2, and the authors' code, whose blocks are 128 wide; stride
    8 or 16, and a threshold of 0.9, are theirs.
    """

    threshold: Share = 0.9
    stride: Count = 16
    block: Block = 128

    name = "xattention"
    source = "arXiv:2503.16428, section 2"
    off: ClassVar = {"threshold": 1.0}
    trial: ClassVar = {"threshold": 0.5, "stride": 2, "block": 4}

    def check(self) -> None:
        self.require(
            self.block % self.stride == 0,
            f"block={self.block} is not a whole number of groups of stride={self.stride}; "
            f"use block={max(1, round(self.block / self.stride)) * self.stride}",
        )

    def chooser(self, services: Services) -> Chooser:
        return self.choose

    def choose(self, piece: Piece) -> Cells:
        """The blocks that rows read."""
        if self.threshold == 1:
            return piece.everything(self.block)
        front, causal = piece.front(self.block), piece.causal(self.block)
        return Cells(self._hold(self._promised(piece, front), causal), self.block, self.block, front)

    def _promised(self, piece: Piece, front: int) -> Tensor:
        """[q_heads, blocks of rows, blocks of units] float32."""
        q, k = piece.queries, piece.keys
        groups, after = -(-(front + piece.units) // self.stride), -piece.rows % self.stride
        q = F.pad(q, (0, 0, 0, after)).unflatten(1, (-1, self.stride)).flip(2).flatten(2)
        k = F.pad(k, (0, 0, front, after)).unflatten(1, (-1, self.stride)).flatten(2)
        sums = piece.logits(q, k).div_(self.stride)  # [q_heads, groups of rows, groups of units]
        own = torch.arange(groups - q.shape[1], groups, device=q.device)
        at = torch.arange(groups, device=q.device)
        hidden = (at > own[:, None]) | (at < front // self.stride)
        weights = sums.masked_fill_(hidden, float("-inf")).softmax(-1)
        per = self.block // self.stride
        weights = F.pad(weights, (0, -groups % per, 0, -len(own) % per))
        return weights.unflatten(-1, (-1, per)).sum(-1).unflatten(1, (-1, per)).sum(2)

    def _hold(self, promised: Tensor, causal: Tensor) -> Tensor:
        """The first block and the own one, and of the others the best, until `threshold` of the sum is held."""
        promised = promised.double()
        forced = torch.eye(causal.shape[1], dtype=torch.bool, device=causal.device)[-len(causal) :]
        forced[:, 0] = True
        held = promised.where(forced, 0.0).sum(-1, keepdim=True)
        others, index = promised.masked_fill(forced, 0.0).sort(dim=-1, descending=True, stable=True)
        before = held + F.pad(others.cumsum(-1)[..., :-1], (1, 0))
        chosen = before < self.threshold * promised.sum(-1, keepdim=True)
        return (torch.zeros_like(chosen).scatter_(-1, index, chosen) | forced) & causal
