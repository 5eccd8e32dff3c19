"""A sketch of every key, a bit for each channel, says which units the current query matches best."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import torch
from torch import Tensor

from winnow.cache.layer import GROWTH
from winnow.cache.view import View
from winnow.kernels.signs import BLOCK, CHANNELS, Signs, pack, signs_of
from winnow.parameters import Count, Natural
from winnow.policies.base import ModelShape, Services
from winnow.policies.compute.base import Deep
from winnow.policies.read.base import Keys, Ranked, Reader, ReadPolicy, Row

LENGTH = 2  # bytes of the length of a key


@dataclass(frozen=True)
class Sketch(ReadPolicy):
    """Read the units whose keys the current query matches best, by a sketch of each; chosen anew in every step.

    budget: units per KV head and layer that a step reads at most. sink: first units, always read. recent: last units,
    always read, the current one included. lag: so many units are sketched at a time; those that wait for others are
    read like recent ones.

    Keys of a layer are first sketched as the prompt ends, where it holds more than the budget then and as many for
    each head, or by the first step that reads less than all; c is their mean. Of a key k are held the signs of
    y = R (k - c), a bit for each of head_dim channels, and t = |y|^2 / |y|_1 in 16 bits; R is one rotation, drawn at
    random, for all models. A query q matches it by q . c + t sum over channels i of sign(y_i) (R q)_i, these rounded to
    eight bits, an estimate of q . k without bias. A unit is chosen for a KV head, by the highest estimate of the query
    heads that share it.

    With n units a layer reads all per KV head if n <= budget. Otherwise it reads `budget` of them, among these the sink
    and the newest r = recent + (first + n - recent) % lag, `first` being the number of the first unit there is, counted
    as they come into the layer; and the sketches of the n - sink - r others, each of which has the bytes of s = (2
    head_dim + 32) / (16 unit bytes) of a unit: `units_read` counts s (n - sink - r), rounded up, and `aux_bytes` has
    them, in whole sixteens, and c. Chosen units are read where they lie. The first units that `streaming` keeps are
    read besides.

    Source: the code is that of RaBitQ (Gao and Long, arXiv:2405.12497, sections 3.1 to 3.3), where queries have four
    bits; to choose by an estimate what is then read exactly: Ribar et al., SparQ Attention, arXiv:2312.04985.
    """

    budget: Count = 1024
    sink: Natural = 4
    recent: Count = 64
    lag: Count = 16

    name = "sketch"
    source = "arXiv:2405.12497, sections 3.1 and 3.2; arXiv:2312.04985"
    off: ClassVar = {"budget": 1_000_000_000}
    trial: ClassVar = {"budget": 12, "sink": 1, "recent": 4, "lag": 3}

    def check(self) -> None:
        sure = self.sink + self.recent + self.lag - 1
        self.require(
            sure < self.budget,
            f"sink={self.sink}, recent={self.recent} and lag={self.lag} leave nothing of budget={self.budget} to be "
            f"chosen; use at least budget={sure + 1}",
        )

    def bound(self, shape: ModelShape, prompt: int, new: int) -> int:
        if prompt + new <= self.budget:
            return 0
        blocks = (prompt + new) // BLOCK + 2
        return shape.layers * shape.kv_heads * (4 * shape.head_dim + blocks * block_bytes(shape.head_dim))

    def reader(self, shape: ModelShape, services: Services, prompt: int) -> Reader:
        return SketchReader(self, Fraction(block_bytes(shape.head_dim), BLOCK * shape.unit_bytes))

    def prefix_stable(self, n: int, deep: Deep) -> int:
        """The prompt, whose rows read everything."""
        return min(n, deep.prompt)


def block_bytes(head_dim: int) -> int:
    """Of the sketches of sixteen keys."""
    return 8 * fours(head_dim) + LENGTH * BLOCK


def fours(head_dim: int) -> int:
    """Of channels."""
    return -(-head_dim // CHANNELS)


class SketchReader(Reader):
    """The sketches of every layer's keys. share: the bytes of one, of a unit's."""

    def __init__(self, policy: Sketch, share: Fraction) -> None:
        self._policy, self._share = policy, share
        self._sketches: dict[int, Sketches] = {}

    def alike(self, layer: int) -> object:
        return True

    def prompt_ends(self, layer: int, first: int, units: int, keys: Keys) -> None:
        """What the next step will ask for is the prompt's work, and not that of the first token after it."""
        if units > self._policy.budget:
            sink, stop = self._policy.sink, self._stop(first, units)
            self._of(layer).follow(lambda start, end: keys(sink + start, sink + end), first + sink, first + stop)

    def select(self, row: Row, views: list[View]) -> Sequence[View | Ranked]:
        *others, view = views
        if view.units <= self._policy.budget:
            return views
        assert view.place is not None
        assert not view.gathered  # only revivals leave units out
        first = row.dropped + view.place  # of all units that ever came, the number of the view's first
        sink, stop = self._policy.sink, self._stop(first, view.units)

        def known(layer: int, keys: Keys) -> Signs:
            return self._of(layer).follow(keys, first + sink, first + stop)

        count = self._policy.budget - sink - (view.units - stop)
        ranked = Ranked(row.ready(view).between(sink, stop), count, known, math.ceil(self._share * (stop - sink)))
        front = [view.between(0, sink)] if sink else []
        return [*others, *front, ranked, view.between(stop, view.units)]

    def _stop(self, first: int, units: int) -> int:
        """Up to which of so many units, from number `first` on, there are sketches."""
        return (first + units - self._policy.recent) // self._policy.lag * self._policy.lag - first

    def _of(self, layer: int) -> "Sketches":
        return self._sketches.setdefault(layer, Sketches())

    def reset(self) -> None:
        self._sketches.clear()

    def fork(self) -> "Reader":
        twin = copy.copy(self)
        twin._sketches = {layer: sketches.fork() for layer, sketches in self._sketches.items()}
        return twin

    @property
    def nbytes(self) -> int:
        return sum(sketches.peak_nbytes for sketches in self._sketches.values())


class Sketches:
    """Of the keys of a layer, which are known by their numbers."""

    def __init__(self) -> None:
        self._codes = torch.empty(
            0, dtype=torch.float32
        )  # [kv_heads, room, head_dim / 4], blocks from that of number `_first` on
        self._lengths = torch.empty(0, dtype=torch.float32)  # [kv_heads, 16 room]
        self._centre: Tensor | None = None
        self._first = 0
        self._stop = 0
        self._peak = 0  # blocks
        self._known: tuple[int, Signs] | None = None  # what was asked for last, and the number of its first unit

    @property
    def peak_nbytes(self) -> int:
        """Bytes of the most sketches held at once, in whole blocks, and of the centre."""
        if self._centre is None:
            return 0
        kv_heads, head_dim = self._centre.shape
        return self._centre.nbytes + kv_heads * self._peak * block_bytes(head_dim)

    def fork(self) -> "Sketches":
        """An independent copy. What is asked of it lies in its own memory, and not where `_known` is."""
        twin = copy.copy(self)
        twin._codes, twin._lengths, twin._known = self._codes.clone(), self._lengths.clone(), None
        return twin

    def follow(self, keys: Keys, start: int, stop: int) -> Signs:
        """Of the units of numbers `[start, stop)`; those before are forgotten.

        keys: of units counted from `start` on, [kv_heads, units, head_dim]; one that is known is not looked at again.
        """
        known = max(start, self._stop)
        if self._known is not None and self._known[0] == start and stop == self._stop:
            return self._known[1]
        if self._centre is None or known < stop:
            new = keys(known - start, stop - start)
            if self._centre is None:
                self._centre = new.float().mean(1)
            self._make_room(start, stop)
            self._write(known, *signs_of(new, self._centre))
            self._stop = stop
        blocks = slice((start - self._first) // BLOCK, -(-(stop - self._first) // BLOCK))
        self._peak = max(self._peak, blocks.stop - blocks.start)
        lengths = self._lengths[:, BLOCK * blocks.start : BLOCK * blocks.stop]
        self._known = start, Signs(self._codes[:, blocks], lengths, self._centre, start % BLOCK, stop - start)
        return self._known[1]

    def _write(self, number: int, bits: Tensor, lengths: Tensor) -> None:
        """Note the units from one on, of whose block only those before it have been noted."""
        place = number - self._first
        codes = pack(bits, place % BLOCK)
        self._codes[:, place // BLOCK :][:, : codes.shape[1]] |= codes
        self._lengths[:, place : place + lengths.shape[1]] = lengths

    def _make_room(self, start: int, stop: int) -> None:
        """For units up to `stop`; where there is none, what was known from the block of `start` on moves."""
        assert self._centre is not None
        held, first = self._codes.shape[1] if self._stop else 0, start // BLOCK * BLOCK
        if self._stop and stop - self._first <= BLOCK * held:
            return
        kv_heads, head_dim = self._centre.shape
        room = int(-(-(stop - first) // BLOCK) * GROWTH) + 1
        codes = torch.zeros(kv_heads, room, fours(head_dim), dtype=torch.int64, device=self._centre.device)
        lengths = torch.zeros(kv_heads, BLOCK * room, dtype=torch.bfloat16, device=self._centre.device)
        if self._stop > first:
            old = (first - self._first) // BLOCK
            kept = -(-(self._stop - first) // BLOCK)
            codes[:, :kept] = self._codes[:, old : old + kept]
            lengths[:, : BLOCK * kept] = self._lengths[:, BLOCK * old : BLOCK * (old + kept)]
        self._codes, self._lengths, self._first = codes, lengths, first
