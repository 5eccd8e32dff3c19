"""Slabs of units that are held as codes of a few bits, each group of them made once."""

import copy

import numpy as np
import torch
from torch import Tensor

from winnow.cache.settled import Coded, Rope
from winnow.kernels.pack import packed
from winnow.kernels.quantize import BLOCK, SIDES, Form, dequantize, quantize, scales_of

GROWTH = 1.25  # the factor by which a full slab grows


class QuantizedSlab:
    """Codes of units, and the scales and minima of their groups; groups come whole and are never made again.

    units: how many there are, a multiple of the form's group. codes, scales: of the keys and of the values, as
    `quantize` makes them. rope: None, or how keys are rotated, codes being of keys before that: they are turned back
    when they come, and are rotated when they are read. places: then [1 or kv_heads, capacity], their rope positions.
    """

    remade = False

    def __init__(
        self, form: Form, kv_heads: int, dtype: torch.dtype, device: torch.device, rope: Rope | None = None
    ) -> None:
        self.form, self.dtype, self.rope = form, dtype, rope
        self.units = 0
        self.places = torch.empty(0, 0, dtype=torch.int32, device=device)
        self.codes, self.scales = [], []
        for side in SIDES:
            self.codes.append(torch.empty(kv_heads, 0, BLOCK * form.row_bytes(side), dtype=torch.uint8, device=device))
            shape = form.scales_shape(side, 0)
            self.scales.append(torch.empty(kv_heads, *shape, dtype=torch.float16, device=device))
        self._facts: np.ndarray | None = None  # until memory moves

    @property
    def kv_heads(self) -> int:
        return len(self.codes[0])

    @property
    def capacity(self) -> int:
        return self.codes[0].shape[1] * BLOCK

    @property
    def group(self) -> int:
        return self.form.group

    @property
    def addressed(self) -> bool:
        return self.rope is None

    @property
    def unit_bytes(self) -> int:
        return self.kv_heads * self.form.unit_bytes + len(self.places) * self.places.itemsize

    @property
    def nbytes(self) -> int:
        return self.capacity * self.unit_bytes

    @property
    def facts(self) -> np.ndarray:
        """What kernels are told (`kernels/quantize/tables.py`); to be held for as long as they run."""
        if self._facts is None:
            told = []
            for side, codes, scales in zip(SIDES, self.codes, self.scales, strict=True):
                by_channel = self.form.axis(side) == "channel"
                row, minima = (1, 2) if by_channel else (2, 1)
                strides = [2 * scales.stride(at) for at in (0, row, minima)]
                told += [codes.data_ptr(), codes.stride(0), scales.data_ptr(), *strides, by_channel]
                told += [self.form.bits_of(side), self.form.row_bytes(side), self.form.group_of(side)]
            self._facts = np.array([*told, self.form.hadamard], dtype=np.int64)
        return self._facts

    def append(self, keys: Tensor, values: Tensor, places: Tensor) -> "QuantizedSlab":
        start, stop = self.units, self.units + keys.shape[1]
        if self.rope is not None and not start:
            self.places = self.places.new_empty(len(places), 0)
        if stop > self.capacity:
            self._take([(0, start)], max(stop, int(self.capacity * GROWTH) // self.form.group * self.form.group))
        if self.rope is not None:
            keys = self.rope.turn(keys.float(), places, back=True)
            self.places[:, start:stop] = places
        for number, (side, units) in enumerate(zip(SIDES, (keys, values), strict=True)):
            codes, scales = quantize(units, self.form, side)
            self.codes[number][:, start // BLOCK : stop // BLOCK] = codes
            scales_of(self.scales[number], self.form, side, start, stop).copy_(scales)
        self.units = stop
        return self

    def without(self, start: int, stop: int) -> "QuantizedSlab":
        twin = copy.copy(self)
        twin.units -= stop - start
        twin._take([(0, start), (stop, self.units)], twin.units)
        return twin

    def run(self, start: int, stop: int) -> Coded:
        return Coded(self, start, stop)

    def read(self, number: int, start: int, stop: int) -> Tensor:
        group = self.form.group_of(SIDES[number])
        first, last = start // group * group, -(-stop // group) * group
        codes = self.codes[number][:, first // BLOCK : last // BLOCK]
        scales = scales_of(self.scales[number], self.form, SIDES[number], first, last)
        return self._floats(number, codes, scales, self.places[:, first:last])[:, start - first : stop - first]

    def pick(self, number: int, index: Tensor) -> Tensor:
        group, form = self.form.group_of(SIDES[number]), self.form
        groups, place = (index // group).unique(return_inverse=True)  # of all KV heads: they lie alike
        units = (groups[:, None] * group + torch.arange(group, device=groups.device)).flatten()
        codes = self.codes[number][:, units[::BLOCK] // BLOCK]
        by_channel = form.axis(SIDES[number]) == "channel"
        scales = self.scales[number][:, groups] if by_channel else self.scales[number][..., units]
        floats = self._floats(number, codes, scales, self.places[:, units])
        return packed(floats, place * group + index % group)

    def _floats(self, number: int, codes: Tensor, scales: Tensor, places: Tensor) -> Tensor:
        """What codes of keys or values stand for, [kv_heads, units, head_dim], keys as they are attended to."""
        if self.rope is None or number:
            return dequantize(codes, scales, self.form, SIDES[number], self.dtype)
        return self.rope.turn(dequantize(codes, scales, self.form, "keys", torch.float32), places).to(self.dtype)

    def _take(self, parts: list[tuple[int, int]], capacity: int) -> None:
        """Move some of the units, whole groups, into memory for `capacity`."""
        form, codes, scales, places = self.form, self.codes, self.scales, self.places
        self._facts = None
        self.codes = [each.new_empty(len(each), capacity // BLOCK, each.shape[2]) for each in codes]
        self.scales = [
            each.new_empty(len(each), *form.scales_shape(side, capacity))
            for side, each in zip(SIDES, scales, strict=True)
        ]
        self.places = places.new_empty(len(places), capacity)
        place = 0
        for start, stop in parts:
            end = place + stop - start
            self.places[:, place:end] = places[:, start:stop]
            for number, side in enumerate(SIDES):
                blocks = slice(place // BLOCK, end // BLOCK)
                self.codes[number][:, blocks] = codes[number][:, start // BLOCK : stop // BLOCK]
                old = scales_of(scales[number], form, side, start, stop)
                scales_of(self.scales[number], form, side, place, end).copy_(old)
            place = end
