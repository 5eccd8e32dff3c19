"""KIVI's store: units that stay are held as codes of a few bits, the newest as they came."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from winnow.kernels.quantize import Axis, Form
from winnow.parameters import Count, Natural
from winnow.policies.base import ModelShape, StorePolicy


@dataclass(frozen=True)
class Quantized(StorePolicy):
    """Hold units as codes of `bits` bits, all but the newest.

    bits: of a code. group: codes that share a scale and a minimum, both of 16 bits. keys, values: "channel": a group is
    so many consecutive units in one channel; "token": so many consecutive channels of one unit. residual: newest units
    that stay as they came, at least; up to group - 1 more do, and those since the last time. chunk: prompt tokens from
    one time to the next; after the prompt it is `group`.

    A key or a value takes bits / 8 + 4 / group bytes per element. Groups are of units in the order in which they stand
    in a cache; each is quantised once, when it is whole, and what rows read from then on is what the codes say: a row
    of a prompt reads the units of earlier chunks so, as later steps do. Keys are held as they are attended to, after
    rotation. Where a policy evicts units by their scores, a layer's are quantised after the last time; one that never
    ends is refused.

    The paper's form quantises values one by one, attends to a prompt in full, and has residual=128, bits=2.

    Source: Liu et al., KIVI, arXiv:2402.02750, section 3 and algorithm 1.
    """

    bits: Literal[2, 4, 8] = 4
    group: Count = 32
    keys: Axis = "channel"
    values: Axis = "token"
    residual: Natural = 128
    chunk: Count = 512

    name = "quantized"
    source = "arXiv:2402.02750, section 3"
    off: ClassVar = {"group": 16, "residual": 1_000_000_000}
    trial: ClassVar = {"bits": 2, "group": 16, "residual": 0, "chunk": 20}

    def check(self) -> None:
        self.require(self.group % 16 == 0, f"group={self.group} is no multiple of 16; use {-(-self.group // 16) * 16}")

    def validate(self, shape: ModelShape) -> None:
        channels = shape.head_dim
        self.require(
            channels % 16 == 0,
            f"the heads of this model have {channels} channels, and codes lie in sixteens; use the store plain",
        )
        self.require(
            channels % self.group == 0 or "token" not in (self.keys, self.values),
            f"group={self.group} does not divide the {channels} channels of a head; use group=16, or keys='channel' "
            "and values='channel'",
        )
        self.require(4 * channels % self.group == 0, f"group={self.group} is above {4 * channels}; use group=16")

    def form(self, head_dim: int) -> Form:
        return Form(self.bits, self.group, self.keys, self.values, head_dim)

    def next_change(self, known: int, prompt: int) -> int | None:
        if known < prompt:
            return min((known // self.chunk + 1) * self.chunk, prompt)
        return (known // self.group + 1) * self.group

    def nbytes(self, units: int, shape: ModelShape) -> int:
        dense = min(units, self.residual + self.group - 1 + max(self.chunk, self.group))
        return dense * shape.unit_bytes + (units - dense) * min(self.form(shape.head_dim).unit_bytes, shape.unit_bytes)
