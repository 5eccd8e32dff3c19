"""How units are held as codes: numbers that the reference and the kernels share."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Axis = Literal["channel", "token"]
Side = Literal["keys", "values"]
SIDES: tuple[Side, Side] = ("keys", "values")
BLOCK = 16  # units whose codes lie interleaved


@dataclass(frozen=True)
class Form:
    """bits: of a code, 2, 4 or 8. group: codes that share a scale and a minimum, a multiple of 16: of consecutive units
    in a channel, or of consecutive channels of a unit, as `keys` and `values` say. head_dim: a multiple of 16.
    value_bits, value_group: the same of values, where they differ; value_group divides group.
    hadamard: whether codes are of keys transformed by `hadamard`, each by itself; head_dim is then a power of two."""

    bits: int
    group: int
    keys: Axis
    values: Axis
    head_dim: int
    hadamard: bool = False
    value_bits: int | None = None
    value_group: int | None = None

    def bits_of(self, side: Side) -> int:
        return self.bits if side == "keys" or self.value_bits is None else self.value_bits

    def group_of(self, side: Side) -> int:
        return self.group if side == "keys" or self.value_group is None else self.value_group

    def planes(self, side: Side) -> int:
        """Codes of a byte."""
        return 8 // self.bits_of(side)

    def row_bytes(self, side: Side) -> int:
        """Of the codes of one unit's key, or value."""
        return self.head_dim // self.planes(side)

    @property
    def unit_bytes(self) -> int:
        """Of a unit, key and value: bits / 8 + 4 / group for each of their elements."""
        return sum(self.row_bytes(side) + 4 * self.head_dim // self.group_of(side) for side in SIDES)

    def axis(self, side: Side) -> Axis:
        return self.keys if side == "keys" else self.values

    def transforms(self, side: Side) -> bool:
        """Whether codes are not of keys, or values, themselves."""
        return self.hadamard and side == "keys"

    def scales_shape(self, side: Side, units: int) -> tuple[int, int, int]:
        """Of the scales and minima of so many units of a KV head, whole groups."""
        if self.axis(side) == "channel":
            return units // self.group_of(side), 2, self.head_dim
        return 2, self.head_dim // self.group_of(side), units


def scales_of(scales: Tensor, form: Form, side: Side, start: int, stop: int) -> Tensor:
    """Those of the units from `start` on, up to `stop`, whole groups; a view. scales: [kv_heads, ...]."""
    if form.axis(side) == "channel":
        return scales[:, start // form.group_of(side) : stop // form.group_of(side)]
    return scales[..., start:stop]
