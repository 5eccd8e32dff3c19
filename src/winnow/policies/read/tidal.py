"""TidalDecode: a few layers choose, in every step, which units the layers above them read."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from winnow.cache.view import View
from winnow.kernels.select import top
from winnow.parameters import Count
from winnow.policies.base import ModelShape, Services
from winnow.policies.compute.base import Deep
from winnow.policies.read.base import Observed, Probe, Reader, ReadPolicy, Row


@dataclass(frozen=True)
class Tidal(ReadPolicy):
    """Read what few layers, which read everything, have just attended to most; chosen anew in every step.

    layers: those that select, counted from 0, ascending; they and the layers before the first of them read everything.
    None: the third layer and the one half way up, of those without a sliding window the next ones from there on; where
    that leaves nobody to read, the last but one without a window. budget: selected units per KV head.

    A layer that selects takes the `budget` units with the highest attention of the current token, as the mean over the
    query heads of a KV head, its own unit apart. The layers up to the next one that selects read those units, where
    they lie, and the current token's own, so min(n, budget + 1) of n per KV head; all others read n. `aux_bytes` counts
    the numbers of those units. Layers with a sliding window read all that it holds and cannot select. The attention is
    a softmax over the units alone, without the extra logits that some models call sinks. The first units that
    `streaming` keeps are read besides.

    The authors' code selects in layer 2 and in one later layer, 9 or 13. The paper also computes the units of sparsely
    decoded tokens anew from time to time, which is left out.

    Source: Yang et al., TidalDecode, arXiv:2410.05076, section 3.
    """

    layers: tuple[int, ...] | None = None
    budget: Count = 256

    takes_gaps = False
    name = "tidal"
    source = "arXiv:2410.05076, section 3"
    off: ClassVar = {"budget": 1_000_000_000}
    trial: ClassVar = {"budget": 3}

    def check(self) -> None:
        if self.layers is None:
            return
        self.require(len(self.layers) > 0, "layers=[] names no layer to select in; leave it out for the preset")
        ascending = self.layers[0] >= 0 and all(low < high for low, high in pairwise(self.layers))
        self.require(ascending, f"layers={list(self.layers)} must be numbers from 0 on, each above the one before it")

    def validate(self, shape: ModelShape) -> None:
        chosen = list(self.layers or ())
        self.require(
            not chosen or chosen[-1] < shape.layers,
            f"layers={chosen} names layer {chosen[-1] if chosen else 0}, and the model has {shape.layers} layers, 0 to "
            f"{shape.layers - 1}",
        )
        full = [layer for layer, window in enumerate(shape.windows) if window is None]
        for layer in chosen:
            self.require(
                layer in full,
                f"layer {layer} has a sliding window of {shape.windows[layer]} tokens and sees too little to select "
                f"from; without a window are {', '.join(map(str, full)) or 'none'}",
            )
        self.require(
            not chosen or chosen[0] < full[-1],
            f"layers={chosen} selects in layer {chosen[0] if chosen else 0}, above which no layer without a sliding "
            "window is left to read less; name an earlier one",
        )

    def selecting(self, shape: ModelShape) -> tuple[int, ...]:
        """The layers of a model that select; none where all have sliding windows."""
        if self.layers is not None:
            return self.layers
        below = [layer for layer, window in enumerate(shape.windows) if window is None][:-1]  # the last has no readers
        third = [layer for layer in below if layer >= 2][:1] or below[-1:]
        middle = [layer for layer in below if layer >= max(2, shape.layers // 2)][:1]
        return tuple(sorted({*third, *middle}))

    def bound(self, shape: ModelShape, prompt: int, new: int) -> int:
        return 8 * shape.kv_heads * self.budget if self.budget + 1 < prompt + new else 0

    def reader(self, shape: ModelShape, services: Services, prompt: int) -> Reader:
        return TidalReader(self.selecting(shape), self.budget)

    def prefix_stable(self, n: int, deep: Deep) -> int:
        """The prompt, whose rows read everything."""
        return min(n, deep.prompt)


class TidalReader(Reader):
    """What the last layer that selects has selected in this step."""

    def __init__(self, selecting: tuple[int, ...], budget: int) -> None:
        self._selecting, self._budget = selecting, budget
        self._index: Tensor | None = None  # [kv_heads, budget] of the last view's units, ascending

    def begin(self, token: int, known: int) -> None:
        self._index = None

    def wants(self, row: Row, views: list[View]) -> Probe | None:
        chooses = row.decode and row.layer in self._selecting and views[-1].units > self._budget + 1
        return "logits" if chooses else None

    def alike(self, layer: int) -> object:
        return layer if layer in self._selecting else None

    def select(self, row: Row, views: list[View]) -> list[View]:
        if self._index is None or row.window is not None or row.layer in self._selecting:
            return views
        *others, view = views
        own = view.between(view.units - 1, view.units)
        return [*others, row.ready(view).chosen(self._index), own]

    def observe(self, row: Row, views: list[View], observed: Observed) -> None:
        kv_heads, units = views[-1].kv_heads, views[-1].units
        weights = torch.cat(observed.logits, 1).softmax(-1)[:, -units:]  # [q_heads, units]
        attention = weights.unflatten(0, (kv_heads, -1)).mean(1)
        self._index = top(attention[:, :-1], self._budget)

    @property
    def nbytes(self) -> int:
        return 0 if self._index is None else self._index.nbytes
