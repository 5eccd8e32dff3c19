"""Copies of chosen units, side by side, for steps to read at the speed of memory."""

from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.cache.run import Dense
from winnow.cache.view import View
from winnow.kernels.pack import pack
from winnow.policies.base import ModelShape


@dataclass
class Buffers:
    """Memory of a packed copy of sink + budget units: keys, values [kv_heads, units, head_dim], positions alike; and of
    the scores of those that were selected, [kv_heads, budget] float32."""

    keys: Tensor
    values: Tensor
    positions: Tensor
    scores: Tensor

    @classmethod
    def beside(cls, view: View, units: int, selected: int = 0) -> "Buffers":
        """For `units` units per KV head of a view, of which so many are selected."""
        kv_heads, _, head_dim = view.keys.shape
        keys, values = (view.keys.new_empty(kv_heads, units, head_dim) for _ in range(2))
        scores = torch.empty(kv_heads, selected, dtype=torch.float32, device=keys.device)
        return cls(keys, values, view.positions.new_empty(kv_heads, units), scores)

    @staticmethod
    def bytes_of(shape: ModelShape, units: int, selected: int = 0) -> int:
        """Bytes of such a copy in one layer of a model."""
        return shape.kv_heads * (units * (shape.unit_bytes + 8) + 4 * selected)

    def fill(self, view: View, index: Tensor) -> None:
        """Copy the units of a view at `index`, [kv_heads, units]."""
        pack(view.keys, index, self.keys)
        pack(view.values, index, self.values)
        torch.gather(view.positions.expand(len(index), -1), 1, index, out=self.positions)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.keys, self.values, self.positions, self.scores

    @property
    def units(self) -> Dense:
        return Dense(self.keys, self.values)

    def view(self, window: int | None, query_limit: int | None, order: Tensor | None = None) -> View:
        """All of the units. order: as in `View`, where it is not their positions; the rest as in `Span`."""
        past = self.keys.shape[1] if window is None and order is None else None
        compared = self.positions if order is None else order
        return View((self.units,), self.positions, compared, past, window, query_limit)
