"""What units are scored by, all at once, when some of them are about to be evicted."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from winnow.cache.layer import LayerCache
from winnow.policies.base import ModelShape
from winnow.policies.keep.base import HeldScorer, Moments, Queries
from winnow.runtime.rotary import LayerRope

Seen = tuple[int, Tensor, Tensor]  # rows, the mean of their queries, the sum of the squares of what is left of them


@dataclass
class QueriesSeen:
    """The queries that rows of a sequence have come to each layer with, unrotated: how many, their mean and covariance.

    Rows are joined with those before by their means (Chan, Golub and LeVeque, 1979), so that the same comes of them
    however they are cut into steps, but for rounding, and no large sums cancel.
    """

    which: Queries
    shape: ModelShape
    layers: dict[int, Seen] = field(default_factory=dict)

    def note(self, layer: int, queries: Tensor, positions: Tensor) -> None:
        """Take in rows: queries [q_heads, rows, head_dim] float32, times the scale of the softmax; positions [rows]."""
        rows = queries[:, positions >= self.which.first]
        if not (count := rows.shape[1]):
            return
        mean = rows.mean(1)
        apart = rows - mean[:, None]
        squares = apart.mT @ apart
        if layer in self.layers:
            before, other, known = self.layers[layer]
            step, total = mean - other, before + count
            squares += known + step[:, :, None] * step[:, None] * (before * count / total)
            count, mean = total, other + step * (count / total)
        self.layers[layer] = count, mean, squares

    def ahead(self, layer: int, rope: LayerRope | None, first: int, device: torch.device) -> Moments:
        """Of these queries at the rope positions from `first` on; zeros where no row has come."""
        if layer not in self.layers:
            heads, width = self.shape.q_heads, self.shape.head_dim
            return Moments(
                torch.zeros(heads, width, dtype=torch.float32, device=device),
                torch.zeros(heads, width, width, dtype=torch.float32, device=device),
            )
        count, mean, squares = self.layers[layer]
        covariance = squares / count
        if rope is None:
            return Moments(mean, covariance)
        turn = rope.averaged(range(first, first + self.which.ahead), mean.device)
        return Moments(turn(mean[:, None])[:, 0], turn(turn(covariance).mT.contiguous()))

    @property
    def nbytes(self) -> int:
        """Bytes of what it holds."""
        return sum(mean.nbytes + squares.nbytes for _, mean, squares in self.layers.values())

    def fork(self) -> "QueriesSeen":
        """An independent copy."""
        return QueriesSeen(self.which, self.shape, dict(self.layers))


def score_held(
    scorer: HeldScorer, cache: LayerCache, rope: LayerRope | None, known: int, layer: int, seen: QueriesSeen | None
) -> Tensor:
    """The scores of all units of a layer after `known` tokens, [kv_heads, slots]; 0 where a head has no unit."""
    keys, values = cache.memory.read(cache.start, cache.stop)
    found = keys.new_zeros(keys.shape[:2], dtype=torch.float32)
    for heads, begin in cache.begins:
        mine, theirs = keys[heads, begin:].float(), values[heads, begin:].float()
        if rope is not None and not cache.rotated:
            mine = rope.turn(mine, torch.arange(mine.shape[1], device=keys.device)[None])
        queries = None
        if seen is not None:
            ahead = seen.ahead(layer, rope, mine.shape[1] if cache.compact else known, keys.device)
            queries = Moments(*(each.unflatten(0, (len(keys), -1))[heads].flatten(0, 1) for each in ahead))
        found[heads, begin:] = scorer(mine, theirs, queries)
    return found
