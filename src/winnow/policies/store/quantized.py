"""KIVI's store: units that stay are held as codes of a few bits, the newest as they came."""

from dataclasses import dataclass
from math import gcd
from typing import ClassVar, Literal

import torch

from winnow.cache.quantized import QuantizedSlab
from winnow.cache.settled import Rope
from winnow.kernels.quantize import SIDES, Axis, Form
from winnow.parameters import Count, Natural, Where
from winnow.policies.base import ModelShape, StorePolicy
from winnow.policies.compute.base import Deep


@dataclass(frozen=True)
class Quantized(StorePolicy):
    """Hold units as codes of `bits` bits, all but the newest.

    bits: of a code. group: codes that share a scale and a minimum, both of 16 bits. keys, values: "channel": a group is
    so many consecutive units in one channel; "token": so many consecutive channels of one unit. residual: newest units
    that stay as they came, at least; up to group - 1 more do, and those since the last time. chunk: prompt tokens from
    one time to the next; after the prompt it is `group`. hadamard: whether codes are of keys after an orthonormal
    Walsh-Hadamard transform of their channels, which spreads outliers over all of them. pre_rope: whether codes are of
    keys before rotation. value_bits, value_group: what bits and group are of values; None: the same.

    A key or a value takes its bits / 8 + 4 / group bytes per element. Groups are of units in the order in which they
    stand in a cache; each is quantised once, when it is whole, and what rows read from then on is what the codes say: a
    row of a prompt reads the units of earlier chunks so, as later steps do. A layer's become codes as soon as it is
    done with the last rows of a chunk: what a chunk brings is there as it came in one layer at a time. Where a policy
    evicts units by their scores, a layer's are quantised after the last time; one that never ends is refused.

    Decode steps read codes where they lie, queries being transformed as keys are, but for `pre_rope`: there keys are
    turned back before they become codes, each unit has its rope position beside it (4 bytes, for all KV heads or for
    each, where they hold different tokens), and every step makes rotated keys of all codes, which is slow.

    The paper's form quantises values one by one, attends to a prompt in full, and has residual=128, bits=2.

    Source: Liu et al., KIVI, arXiv:2402.02750, section 3 and algorithm 1. hadamard: Ashkboos et al., QuaRot,
    arXiv:2404.00456, of keys alone. pre_rope: Hooper et al., KVQuant, arXiv:2401.18079, without its uneven steps and
    outliers.
    """

    bits: Literal[2, 4, 8] = 4
    group: Count = 32
    keys: Axis = "channel"
    values: Axis = "token"
    residual: Natural = 128
    chunk: Count = 512
    hadamard: bool = False
    pre_rope: bool = False
    value_bits: Literal[2, 4, 8] | None = None
    value_group: Count | None = None

    name = "quantized"
    source = "arXiv:2402.02750, section 3"
    off: ClassVar = {"group": 16, "residual": 1_000_000_000}
    trial: ClassVar = {"bits": 2, "group": 16, "residual": 0, "chunk": 20}
    matters: ClassVar = {"value_group": Where("a group above 16", lambda policy: policy.group > 16)}

    def check(self) -> None:
        of_values = self.group if self.value_group is None else self.value_group
        for name, group in (("group", self.group), ("value_group", of_values)):
            self.require(group % 16 == 0, f"{name}={group} is no multiple of 16; use {-(-group // 16) * 16}")
        self.require(
            self.group % of_values == 0,
            f"value_group={of_values} does not divide group={self.group}, and units become codes in whole groups; use "
            "value_group=16",
        )

    def validate(self, shape: ModelShape) -> None:
        channels = shape.head_dim
        self.require(
            channels % 16 == 0,
            f"the heads of this model have {channels} channels, and codes lie in sixteens; use the store plain",
        )
        form = self.form(channels)
        for side in SIDES:
            group, name = form.group_of(side), "value_group" if side == "values" and self.value_group else "group"
            self.require(
                channels % group == 0 or form.axis(side) == "channel",
                f"{name}={group} does not divide the {channels} channels of a head; use {name}={gcd(group, channels)}, "
                f"or {side}='channel'",
            )
        self.require(
            not self.hadamard or channels & (channels - 1) == 0,
            f"hadamard=True takes heads of 2, 4, 8, .. channels, and those of this model have {channels}; use "
            "hadamard=False",
        )
        self.require(4 * channels % self.group == 0, f"group={self.group} is above {4 * channels}; use group=16")

    def settled(
        self, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device, rope: Rope | None
    ) -> QuantizedSlab:
        return QuantizedSlab(self.form(head_dim), kv_heads, dtype, device, rope if self.pre_rope else None)

    def form(self, head_dim: int) -> Form:
        """What codes stand for, and how they lie."""
        of_values = self.value_bits, self.value_group
        return Form(self.bits, self.group, self.keys, self.values, head_dim, self.hadamard, *of_values)

    def next_change(self, known: int, prompt: int) -> int | None:
        if known < prompt:
            return min((known // self.chunk + 1) * self.chunk, prompt)
        return (known // self.group + 1) * self.group

    def stays(self, prompt: int) -> int:
        """Those of a stretch, and of a group that has some which stay, behind the first tokens and before the last."""
        return max(self.chunk, self.group) + 2 * (self.group - 1)

    def prefix_stable(self, n: int, deep: Deep) -> int:
        """All but the last prompt token, with which more become codes than would in the middle of a prompt."""
        return min(n, deep.prompt - 1)

    def nbytes(self, units: int, shape: ModelShape) -> int:
        dense = min(units, self.residual + self.group - 1 + max(self.chunk, self.group))
        place = 4 * self.pre_rope
        return dense * shape.unit_bytes + (units - dense) * (self.form(shape.head_dim).unit_bytes + place)
