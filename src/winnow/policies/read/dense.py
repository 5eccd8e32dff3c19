"""Every step reads every unit that is kept."""

from dataclasses import dataclass

from winnow.policies.compute.base import Deep
from winnow.policies.read.base import ReadPolicy


@dataclass(frozen=True)
class Dense(ReadPolicy):
    """Read all kept units at every decode step."""

    name = "dense"
    identity = True

    def prefix_stable(self, n: int, deep: Deep) -> int:
        return n
