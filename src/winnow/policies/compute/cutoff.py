"""A cutoff: how many of the first layers compute the prompt."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from winnow.policies.base import ModelShape
from winnow.policies.compute.base import ComputePolicy
from winnow.policies.compute.gates import Gate


@dataclass(frozen=True)
class ShallowPrefill(ComputePolicy):
    """Prompt tokens stop at layer K, but for those that the policy names when it sees the prompt (`full_depth`).

    cutoff: K, a count of layers from 1 on, or a share of them above 0.0 and up to 1.0, rounded half up.
    """

    cutoff: int | float = 0.75

    off: ClassVar = {"cutoff": 1.0}

    def check(self) -> None:
        count = isinstance(self.cutoff, int)
        self.require(
            not count or self.cutoff >= 1,
            f"cutoff={self.cutoff}: the prompt needs at least one layer; use a count from 1 on, or a share",
        )
        self.require(
            count or 0 < self.cutoff <= 1,
            f"cutoff={self.cutoff} must be a count of layers, or a share above 0.0 and up to 1.0",
        )

    def validate(self, shape: ModelShape) -> None:
        self.require(
            self.cut(shape) <= shape.layers,
            f"cutoff={self.cutoff} is above the model's {shape.layers} layers; use 1 to {shape.layers}",
        )

    def cut(self, shape: ModelShape) -> int:
        """K: how many layers compute the prompt."""
        return self.cutoff if isinstance(self.cutoff, int) else max(1, math.floor(self.cutoff * shape.layers + 0.5))

    def resolved(self, shape: ModelShape) -> Self:
        return replace(self, cutoff=self.cut(shape))

    def gates(self, shape: ModelShape) -> tuple[Gate, ...]:
        return (self.gate(shape),) if self.cut(shape) < shape.layers else ()

    def gate(self, shape: ModelShape) -> Gate:
        """The one at layer K."""
        return Gate(self.cut(shape))
