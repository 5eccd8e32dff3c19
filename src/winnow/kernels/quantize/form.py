"""How units are held as codes: numbers that the reference and the kernels share."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Axis = Literal["channel", "token"]
LANES = 16  # codes that a kernel unpacks at once


@dataclass(frozen=True)
class Form:
    """bits: of a code. group: codes that share a scale and a minimum: of consecutive units in a channel, or of
    consecutive channels of a unit, as `keys` and `values` say. head_dim: a multiple of 8 / bits."""

    bits: int
    group: int
    keys: Axis
    values: Axis
    head_dim: int

    @property
    def row_bytes(self) -> int:
        """Of the codes of one unit's key, or value."""
        return self.head_dim * self.bits // 8

    @property
    def unit_bytes(self) -> int:
        """Of a unit, key and value: bits / 8 + 4 / group for each of their elements."""
        return 2 * (self.row_bytes + 4 * self.head_dim // self.group)

    @property
    def in_lanes(self) -> bool:
        """Whether the kernels can read it: sixteen codes at a time, all of one group."""
        return self.row_bytes % LANES == 0 and self.group % LANES == 0

    def scales_shape(self, axis: Axis, units: int) -> tuple[int, int, int]:
        """Of the scales and minima of so many units of a KV head, whole groups."""
        groups = self.head_dim // self.group
        return (units // self.group, 2, self.head_dim) if axis == "channel" else (2, groups, units)


def scales_of(scales: Tensor, form: Form, axis: Axis, start: int, stop: int) -> Tensor:
    """Those of the units from `start` on, up to `stop`, and of the others of their groups; a view.

    scales: [kv_heads, ...], see `quantize`.
    """
    if axis == "channel":
        return scales[:, start // form.group : -(-stop // form.group)]
    return scales[..., start:stop]
