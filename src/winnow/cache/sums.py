"""What stays of a layer where it is not units alone: sums of units that would otherwise be evicted."""

from typing import NamedTuple

from torch import Tensor

from winnow.cache.run import Units


class Sums(NamedTuple):
    """Units that stay as they are and, in the slots behind them, sums of the others.

    kept: [kv_heads, kept] index of live units, ascending. parts: [kv_heads, parts], likewise, those that are summed.
    weights: [kv_heads, sums, parts] float32. seeds: [kv_heads, sums] index of live units, at whose positions the sums
    stand. score: of every sum, from now on.
    """

    kept: Tensor
    parts: Tensor
    weights: Tensor
    seeds: Tensor
    score: float = 0.0

    @property
    def number(self) -> int:
        """Sums per KV head."""
        return self.seeds.shape[1]

    def of(self, parts: Units) -> Units:
        """The sums of keys and of values [kv_heads, parts, head_dim], added up in float32, in their dtype."""
        keys, values = ((self.weights @ each.float()).to(each.dtype) for each in parts)
        return keys, values
