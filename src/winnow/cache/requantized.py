"""Slabs of units that are quantised anew, all of them, whenever others come, as transformers' QuantizedCache does."""

import torch
from torch import Tensor

from winnow.cache.settled import Coded
from winnow.kernels.pack import packed
from winnow.kernels.quantize.quanto import QuantoCodes, quanto_dequantize, quanto_quantize


class RequantizedSlab:
    """Codes of units, made as often as others have come since; a slab never changes.

    bits, channels, zero_point: as of `quanto_quantize`, whose group is so many channels. sides: what it has made of
    keys and of values [kv_heads, units, head_dim].
    """

    group, remade, addressed = 1, True, False

    def __init__(self, bits: int, channels: int, sides: tuple[QuantoCodes, ...], *, zero_point: bool) -> None:
        self.bits, self.channels, self.sides, self.zero_point = bits, channels, sides, zero_point

    @classmethod
    def empty(
        cls,
        bits: int,
        channels: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        zero_point: bool,
    ) -> "RequantizedSlab":
        nothing = torch.empty(kv_heads, 0, head_dim, dtype=dtype, device=device)
        side = quanto_quantize(nothing, bits, channels, zero_point=zero_point)
        return cls(bits, channels, (side, side), zero_point=zero_point)

    @property
    def kv_heads(self) -> int:
        return len(self.sides[0].codes)

    @property
    def units(self) -> int:
        return self.sides[0].codes.shape[1]

    @property
    def capacity(self) -> int:
        return self.units

    @property
    def unit_bytes(self) -> int:
        return sum(each[:, :1].nbytes for side in self.sides for each in side)

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for side in self.sides for each in side)

    def append(self, keys: Tensor, values: Tensor, places: Tensor) -> "RequantizedSlab":
        sides = []
        for number, units in enumerate((keys, values)):
            every = torch.cat((self.read(number, 0, self.units), units), 1)
            sides.append(quanto_quantize(every, self.bits, self.channels, zero_point=self.zero_point))
        return self._with(tuple(sides))

    def without(self, start: int, stop: int) -> "RequantizedSlab":
        return self._with(
            tuple(
                QuantoCodes(*(torch.cat((each[:, :start], each[:, stop:]), 1) for each in side)) for side in self.sides
            )
        )

    def run(self, start: int, stop: int) -> Coded:
        return Coded(self, start, stop)

    def read(self, number: int, start: int, stop: int) -> Tensor:
        return quanto_dequantize(QuantoCodes(*(each[:, start:stop] for each in self.sides[number])), self.bits)

    def pick(self, number: int, index: Tensor) -> Tensor:
        coded = (packed(each, index) for each in self.sides[number])
        return quanto_dequantize(QuantoCodes(*coded), self.bits)

    def _with(self, sides: tuple[QuantoCodes, ...]) -> "RequantizedSlab":
        return RequantizedSlab(self.bits, self.channels, sides, zero_point=self.zero_point)
