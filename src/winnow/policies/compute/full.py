"""Every row enters every layer."""

from dataclasses import dataclass

from winnow.policies.compute.base import ComputePolicy, Deep


@dataclass(frozen=True)
class Full(ComputePolicy):
    """Compute every token in every layer (ordinary prefill)."""

    name = "full"
    identity = True

    def prefix_stable(self, n: int, deep: Deep) -> int:
        return n
