"""What one layer's attention is given for the rows of a block, and how it is rotated."""

from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.cache.layer import LayerCache
from winnow.kernels.dots import dots
from winnow.runtime.decoder import Decoder
from winnow.runtime.segment import Segment
from winnow.runtime.shape import NOT_ROTATED

Tables = dict[str | None, tuple[Tensor, Tensor]]


class Ropes:
    """cos and sin at rope positions other than the rows' own, for the parts of a block; the same in every layer."""

    def __init__(self, decoder: Decoder) -> None:
        self._rotary = decoder.rotary
        self._known: dict[tuple[int, int, int], Tables] = {}

    def limited(self, part: Segment, limit: int) -> Tables:
        """At the positions of a part's rows, but at most at `limit`."""
        key = (id(part), -1, limit)
        if key not in self._known:
            self._known[key] = self._rotary.tables(part.sequence.frequencies, part.positions.clamp(max=limit))
        return self._known[key]

    def run(self, part: Segment, start: int, stop: int) -> Tables:
        """At `start` .. `stop - 1`."""
        key = (id(part), start, stop)
        if key not in self._known:
            places = torch.arange(start, stop, device=part.positions.device)
            self._known[key] = self._rotary.tables(part.sequence.frequencies, places)
        return self._known[key]

    def back(self, part: Segment, start: int, stop: int) -> Tables:
        """Those that turn keys, rotated at `start` .. `stop - 1`, to rope position 0; float32."""
        key = (id(part), -2 - start, stop)
        if key not in self._known:
            there, zero = self.run(part, start, stop), self.run(part, 0, 1)
            self._known[key] = {kind: _between(*there[kind], zero[kind][0]) for kind in there}
        return self._known[key]


@dataclass(frozen=True)
class Projected:
    """The projections of a block's rows in one layer, `[heads, rows, head_dim]`.

    q, k: rotated at the rows' positions; raw_q, raw_k: unrotated. kind: the layer's in `Decoder.rope_kinds`. scale,
    softcap, sinks: what its attention is done with.
    """

    decoder: Decoder
    ropes: Ropes
    kind: str | None
    raw_q: Tensor
    raw_k: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    softcap: float | None
    sinks: Tensor | None

    def rows(self, part: Segment) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v of a part, unrotated."""
        rows = slice(part.start, part.stop)
        return self.raw_q[:, rows], self.raw_k[:, rows], self.v[:, rows]

    def append(self, part: Segment, cache: LayerCache, scores: Tensor | None) -> None:
        """Give the cache the units of a part."""
        rows = slice(part.start, part.stop)
        keys = (self.raw_k if cache.compact else self.k)[:, rows]
        if cache.compact and cache.rotated:
            keys = self._rotate(keys, self.ropes.run(part, cache.length, cache.length + part.rows))
        cache.append(keys, self.v[:, rows], part.positions, part.first if part.consecutive else None, scores)

    def placed(self, part: Segment, keys: Tensor, first: int) -> Tensor:
        """Keys [kv_heads, units, head_dim] of a compact cache, rotated at the rope positions from `first` on."""
        return self._rotate(keys, self.ropes.run(part, first, first + keys.shape[1]))

    def nearer(self, part: Segment, keys: Tensor, first: int) -> Tensor:
        """Keys [kv_heads, units, head_dim] that are rotated at the rope positions from `first` on, as at 0; a copy."""
        tables = self.ropes.back(part, first, first + keys.shape[1])
        return self._rotate(keys.float(), tables).to(keys.dtype)

    def queries(self, part: Segment, limit: int | None = None, compact: int | None = None) -> Tensor:
        """[rows, q_heads, head_dim], rotated at their positions, at most at `limit`, or so that the last one stands at
        the end of a compact cache of `compact` units."""
        rows = slice(part.start, part.stop)
        if compact is not None:
            return self._rotate(self.raw_q[:, rows], self.ropes.run(part, compact - part.rows, compact)).transpose(0, 1)
        if limit is not None:
            return self._rotate(self.raw_q[:, rows], self.ropes.limited(part, limit)).transpose(0, 1)
        return self.q[:, rows].transpose(0, 1)

    def match(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Logits [vectors, units] float32, as the softmax sees them. queries: [vectors, head_dim], equally many for
        each KV head; keys: [kv_heads, units, head_dim]."""
        return match(queries, keys, self.scale, self.softcap)

    def capped(self, logits: Tensor) -> Tensor:
        """Logits with the layer's soft cap, if it has one."""
        return capped(logits, self.softcap)

    def _rotate(self, x: Tensor, tables: Tables) -> Tensor:
        return x if self.kind is NOT_ROTATED else self.decoder.rotary.rotate(x[None], tables[self.kind])[0]


def _between(cos: Tensor, sin: Tensor, zero: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of the way back, whatever else the ones of the way there are multiplied by, and those at position 0,
    `zero`, with them."""
    cos, sin = cos.float(), sin.float()
    scale = zero.float() / (cos.square() + sin.square())
    return cos * scale, -sin * scale


def match(queries: Tensor, keys: Tensor, scale: float, softcap: float | None) -> Tensor:
    """Logits [vectors, units] float32, as a softmax sees them. queries, keys: as of `dots`."""
    return capped(dots(queries, keys).mul_(scale), softcap)


def capped(logits: Tensor, softcap: float | None) -> Tensor:
    """Logits with a soft cap; None: as they are."""
    return logits if softcap is None else softcap * (logits / softcap).tanh()
