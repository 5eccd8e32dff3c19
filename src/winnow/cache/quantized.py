"""Slabs of units that are held as codes of a few bits."""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from winnow.cache.run import Run
from winnow.kernels.quantize import Axis, Form, dequantize, quantize, scales_of

GROWTH = 1.25  # the factor by which a full slab grows


class QuantizedSlab:
    """Codes of units, and the scales and minima of their groups; groups come whole and are never made again.

    units: how many there are, a multiple of the form's group.
    """

    def __init__(self, form: Form, kv_heads: int, dtype: torch.dtype, device: torch.device) -> None:
        self.form, self.dtype = form, dtype
        self.units = 0
        self._facts: np.ndarray | None = None  # until memory moves
        self.unit_bytes = kv_heads * form.unit_bytes
        self.codes = [torch.empty(kv_heads, 0, form.row_bytes, dtype=torch.uint8, device=device) for _ in range(2)]
        self.scales = [
            torch.empty(kv_heads, *form.scales_shape(axis, 0), dtype=torch.float16, device=device)
            for axis in (form.keys, form.values)
        ]

    @property
    def capacity(self) -> int:
        return self.codes[0].shape[1]

    @property
    def facts(self) -> np.ndarray:
        """What kernels are told (`kernels/quantize/tables.py`); to be held for as long as they run."""
        if self._facts is None:
            axes, told = (self.form.keys, self.form.values), []
            for codes, scales, axis in zip(self.codes, self.scales, axes, strict=True):
                row, minima = (1, 2) if axis == "channel" else (2, 1)
                strides = [2 * scales.stride(at) for at in (0, row, minima)]
                told += [codes.data_ptr(), codes.stride(0), scales.data_ptr(), *strides, axis == "channel"]
            facts = [*told, self.form.bits, self.form.group, self.form.row_bytes]
            self._facts = np.array(facts, dtype=np.int64)
        return self._facts

    @property
    def nbytes(self) -> int:
        """Bytes reserved."""
        return self.capacity * self.unit_bytes

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Add units, [kv_heads, whole groups, head_dim], at the end."""
        start, stop, form = self.units, self.units + keys.shape[1], self.form
        if stop > self.capacity:
            most = max(stop, int(self.capacity * GROWTH))
            self._take([(0, start)], -(-most // form.group) * form.group)
        for side, (each, axis) in enumerate(((keys, form.keys), (values, form.values))):
            codes, scales = quantize(each, form, axis)
            self.codes[side][:, start:stop] = codes
            scales_of(self.scales[side], form, axis, start, stop).copy_(scales)
        self.units = stop

    def without(self, start: int, stop: int) -> "QuantizedSlab":
        """A slab with all but some whole groups; this one stays as it is, since somebody may be reading it."""
        twin = copy.copy(self)
        twin.units -= stop - start
        twin._take([(0, start), (stop, self.units)], twin.units)
        return twin

    def run(self, start: int, stop: int) -> "QuantizedRun":
        return QuantizedRun(self, start, stop)

    def read(self, side: int, start: int, stop: int) -> Tensor:
        """Keys (0) or values (1), [kv_heads, units, head_dim], of some units; a copy."""
        axis: Axis = (self.form.keys, self.form.values)[side]
        scales = scales_of(self.scales[side], self.form, axis, start, stop)
        codes, first = self.codes[side][:, start:stop], start % self.form.group
        return dequantize(codes, scales, self.form, axis, first, self.dtype)

    def _take(self, parts: list[tuple[int, int]], capacity: int) -> None:
        """Move some of the units, whole groups, into memory for `capacity`."""
        form = self.form
        codes, scales, self._facts = self.codes, self.scales, None
        self.codes = [each.new_empty(len(each), capacity, form.row_bytes) for each in codes]
        self.scales = [
            each.new_empty(len(each), *form.scales_shape(axis, capacity))
            for each, axis in zip(scales, (form.keys, form.values), strict=True)
        ]
        place = 0
        for start, stop in parts:
            end = place + stop - start
            for side, axis in enumerate((form.keys, form.values)):
                self.codes[side][:, place:end] = codes[side][:, start:stop]
                old = scales_of(scales[side], form, axis, start, stop)
                scales_of(self.scales[side], form, axis, place, end).copy_(old)
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
