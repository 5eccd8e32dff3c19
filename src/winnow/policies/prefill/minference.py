"""MInference: a few patterns of attention, one for each head, whose places are found in the prompt itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from winnow.kernels.sparse import Cells
from winnow.parameters import Count, Natural, Where
from winnow.policies.base import Services
from winnow.policies.prefill.base import Block, Chooser, Chunked, Piece, best, pooled

Kind = Literal["vertical_slash", "a_shape", "block_sparse"]
PATTERNS = get_args(Kind)
LAST = 64  # rows by whose attention columns and diagonals are chosen


class Pattern(NamedTuple):
    """What a head reads: a kind, and its two sizes; of blocks the first is how many."""

    kind: Kind
    first: int
    second: int = 0


ALIKE = Where("heads that are alike, without heads=...", lambda policy: policy.heads is None)
SIZED = Where(
    "pattern='vertical_slash' or 'a_shape', and no heads=...",
    lambda policy: policy.pattern != "block_sparse" and policy.heads is None,
)


@dataclass(frozen=True)
class MInference(Chunked):
    """Read a prompt in patterns: columns and diagonals, the first units and the recent ones, or the best blocks.

    pattern: of all heads. heads: a directory in which `winnow diagnose patterns` has written the pattern and the sizes
    of each head instead; None: all are alike. vertical: columns; of an A-shape the first units. slash: diagonals; of an
    A-shape the recent units. blocks: that a block of rows reads. sink, near: the first columns and the nearest
    diagonals, always among those that are read. block: rows, and units, of a block. chunk: tokens of a prompt for which
    is chosen at once; a multiple of `block`.

    With P the attention of the chunk's last 64 rows, the columns with the highest sums of P are read, and the diagonals
    (units at the same distance) with the highest sums. A block of rows [r, r + block) reads a column whole, and of a
    diagonal at distance o all units [e - block, e) with e = max(r + block - o, block). In an A-shape it reads the first
    units and those that are less than `slash` away from its first row, in block_sparse the blocks of units whose mean
    keys match its mean query best. Rows see no unit behind their own.

    A block of rows reads together what any of its rows would: the authors' A-shape masks row by row, and their kernel
    rounds bands of diagonals up to more whole tiles. Of equal diagonals the nearer ones are taken, there any. There
    a prompt is one chunk, and counts below 30 columns or 50 diagonals are raised to these.

    Source: Jiang et al., MInference 1.0, arXiv:2407.02490, section 3 and appendix C, and the authors' code. Its sizes,
    (1000, 6096) where nothing was searched, are for prompts of 100,000 tokens.
    """

    pattern: Kind = "vertical_slash"
    vertical: Count = 1000
    slash: Count = 200
    blocks: Count = 100
    sink: Natural = 30
    near: Natural = 100
    block: Block = 64
    chunk: Count = 2048
    heads: str | None = None

    name = "minference"
    source = "arXiv:2407.02490, section 3"
    off: ClassVar = {"vertical": 1_000_000_000}
    trial: ClassVar = {"vertical": 4, "slash": 3, "sink": 1, "near": 1, "block": 2, "chunk": 8}
    matters: ClassVar = {
        "pattern": ALIKE,
        "vertical": SIZED,
        "slash": SIZED,
        "sink": Where("pattern='vertical_slash'", lambda p: p.pattern == "vertical_slash"),
        "near": Where("pattern='vertical_slash'", lambda p: p.pattern == "vertical_slash"),
        "blocks": Where("pattern='block_sparse'", lambda p: p.pattern == "block_sparse" and p.heads is None),
    }
    loads: ClassVar = ("heads",)

    @property
    def looks(self) -> int:
        return LAST

    def prepare(self, services: Services, ids: list[int] | None) -> None:
        self.require(self.heads != "", "heads='' is no directory; leave heads out for the same pattern in all heads")
        if self.heads is not None:
            services.head_patterns(self.heads)

    def chooser(self, services: Services) -> Chooser:
        if self.heads is not None:
            return partial(self.choose, layers=dict(enumerate(services.head_patterns(self.heads))))
        sizes = (self.blocks, 0) if self.pattern == "block_sparse" else (self.vertical, self.slash)
        heads = [Pattern(self.pattern, *sizes)] * services.shape.q_heads
        return partial(self.choose, layers=dict.fromkeys(range(services.shape.layers), heads))

    def choose(self, piece: Piece, layers: Mapping[int, Sequence[Pattern]]) -> Cells:
        """What rows read, by the patterns of the layer's heads."""
        heads = layers[piece.layer]
        if all(each.kind == "block_sparse" for each in heads):
            seen = self._best_blocks(piece, torch.tensor([each.first for each in heads]))
            return Cells(seen, self.block, self.block, piece.front(self.block))
        seen = torch.empty(len(heads), -(-piece.rows // self.block), piece.units, dtype=torch.bool)
        seen = seen.to(piece.keys.device)
        for pattern in dict.fromkeys(heads):
            mine = torch.tensor([each == pattern for each in heads], device=seen.device)
            seen[mine] = self._units(piece, pattern, mine)
        return Cells(seen, self.block, 1)

    def _units(self, piece: Piece, pattern: Pattern, mine: Tensor) -> Tensor:
        """[heads, blocks of rows, units] bool, of the heads that are `mine`, [q_heads] bool."""
        count, units = int(mine.sum()), piece.units
        if pattern.kind == "block_sparse":
            seen = self._best_blocks(piece, torch.full((len(mine),), pattern.first))[mine]
            return seen.repeat_interleave(self.block, -1)[..., piece.front(self.block) :][..., :units]
        if pattern.kind == "a_shape":
            at = torch.arange(units, device=mine.device)
            columns, diagonals = (at < pattern.first).expand(count, -1), (at < pattern.second).expand(count, -1)
            return columns[:, None] | self._bands(piece, diagonals)
        by_unit, by_distance = piece.attention_of_last(min(LAST, piece.rows))
        columns = best(by_unit[mine], pattern.first, self.sink)
        diagonals = best(by_distance[mine], pattern.second, self.near)
        return columns[:, None] | self._bands(piece, diagonals)

    def _bands(self, piece: Piece, diagonals: Tensor) -> Tensor:
        """[heads, blocks of rows, units] bool: what blocks of rows read of `diagonals`, [heads, units] bool."""
        units, blocks = piece.units, -(-piece.rows // self.block)
        known = F.pad(diagonals.cumsum(-1, dtype=torch.int32), (1, 0))  # how many are nearer than a distance
        at = torch.arange(units + self.block - 1, device=known.device).flip(0)  # the farthest of a band, descending
        near = known[:, (at + 1).clamp(max=units)] > known[:, (at + 1 - self.block).clamp(min=0)]
        # The bands of a block are those of the one before it, moved by a block.
        first = piece.rows - 1 - (blocks - 1) * self.block
        seen = F.pad(near[:, first:], (0, units)).unfold(1, units, self.block)[:, :blocks].flip(1)
        start = piece.past + self.block * torch.arange(blocks, device=known.device)
        beyond = known[:, (start + self.block).clamp(max=units)] > known[:, (start + 1).clamp(max=units)]
        seen[..., : self.block] |= beyond[..., None]
        return seen

    def _best_blocks(self, piece: Piece, counts: Tensor) -> Tensor:
        """[q_heads, blocks of rows, blocks of units] bool: so many of each head, by mean queries and keys."""
        causal, keys = piece.causal(self.block), pooled(piece.keys, self.block, piece.front(self.block))
        scores = piece.logits(pooled(piece.queries, self.block), keys).masked_fill(~causal, float("-inf"))
        index = scores.sort(dim=-1, descending=True, stable=True).indices
        rank = torch.arange(scores.shape[-1], device=scores.device) < counts.to(scores.device)[:, None, None]
        return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, index, rank.expand_as(scores)) & causal
