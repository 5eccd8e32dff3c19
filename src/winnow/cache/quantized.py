"""Slabs of units that are held as codes of a few bits."""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from winnow.cache.run import Run
from winnow.kernels.quantize import Form, Side, dequantize, quantize, scales_of
from winnow.kernels.quantize.form import BLOCK

SIDES: tuple[Side, Side] = ("keys", "values")
GROWTH = 1.25  # the factor by which a full slab grows


class QuantizedSlab:
    """Codes of units, and the scales and minima of their groups; groups come whole and are never made again.

    units: how many there are, a multiple of the form's group. codes, scales: of the keys and of the values, as
    `quantize` makes them.
    """

    def __init__(self, form: Form, kv_heads: int, dtype: torch.dtype, device: torch.device) -> None:
        self.form, self.dtype = form, dtype
        self.units = 0
        self.unit_bytes = kv_heads * form.unit_bytes
        self.codes, self.scales = [], []
        for side in SIDES:
            self.codes.append(torch.empty(kv_heads, 0, BLOCK * form.row_bytes, dtype=torch.uint8, device=device))
            shape = form.scales_shape(side, 0)
            self.scales.append(torch.empty(kv_heads, *shape, dtype=torch.float16, device=device))
        self._facts: np.ndarray | None = None  # until memory moves

    @property
    def capacity(self) -> int:
        return self.codes[0].shape[1] * BLOCK

    @property
    def nbytes(self) -> int:
        """Bytes reserved."""
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
            self._facts = np.array([*told, self.form.bits, self.form.group, self.form.row_bytes], dtype=np.int64)
        return self._facts

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Add units, [kv_heads, whole groups, head_dim], at the end."""
        start, stop = self.units, self.units + keys.shape[1]
        if stop > self.capacity:
            self._take([(0, start)], max(stop, int(self.capacity * GROWTH) // self.form.group * self.form.group))
        for number, (side, units) in enumerate(zip(SIDES, (keys, values), strict=True)):
            codes, scales = quantize(units, self.form, side)
            self.codes[number][:, start // BLOCK : stop // BLOCK] = codes
            scales_of(self.scales[number], self.form, side, start, stop).copy_(scales)
        self.units = stop

    def without(self, start: int, stop: int) -> "QuantizedSlab":
        """A slab with all but some whole groups; this one stays as it is, since somebody may be reading it."""
        twin = copy.copy(self)
        twin.units -= stop - start
        twin._take([(0, start), (stop, self.units)], twin.units)
        return twin

    def run(self, start: int, stop: int) -> "QuantizedRun":
        return QuantizedRun(self, start, stop)

    def read(self, number: int, start: int, stop: int) -> Tensor:
        """Keys (0) or values (1), [kv_heads, units, head_dim], of some units; a copy."""
        group, side = self.form.group, SIDES[number]
        first, last = start // group * group, -(-stop // group) * group
        codes = self.codes[number][:, first // BLOCK : last // BLOCK]
        scales = scales_of(self.scales[number], self.form, side, first, last)
        return dequantize(codes, scales, self.form, side, self.dtype)[:, start - first : stop - first]

    def _take(self, parts: list[tuple[int, int]], capacity: int) -> None:
        """Move some of the units, whole groups, into memory for `capacity`."""
        form, codes, scales = self.form, self.codes, self.scales
        self._facts = None
        self.codes = [each.new_empty(len(each), capacity // BLOCK, each.shape[2]) for each in codes]
        self.scales = [
            each.new_empty(len(each), *form.scales_shape(side, capacity))
            for side, each in zip(SIDES, scales, strict=True)
        ]
        place = 0
        for start, stop in parts:
            end = place + stop - start
            for number, side in enumerate(SIDES):
                blocks = slice(place // BLOCK, end // BLOCK)
                self.codes[number][:, blocks] = codes[number][:, start // BLOCK : stop // BLOCK]
                old = scales_of(scales[number], form, side, start, stop)
                scales_of(self.scales[number], form, side, place, end).copy_(old)
            place = end


@dataclass(frozen=True)
class QuantizedRun(Run):
    """Some units of a slab."""

    slab: QuantizedSlab
    start: int
    stop: int

    @property
    def kv_heads(self) -> int:
        return len(self.slab.codes[0])

    @property
    def units(self) -> int:
        return self.stop - self.start

    @property
    def keys(self) -> Tensor:
        return self.slab.read(0, self.start, self.stop)

    @property
    def values(self) -> Tensor:
        return self.slab.read(1, self.start, self.stop)

    def between(self, start: int, stop: int) -> "QuantizedRun":
        return QuantizedRun(self.slab, self.start + start, min(self.start + stop, self.stop))
