"""Units in the model's own dtype, on the model's own device."""

from dataclasses import dataclass

from winnow.policies.base import StorePolicy
from winnow.policies.compute.base import Deep


@dataclass(frozen=True)
class Plain(StorePolicy):
    """Hold keys and values as the model computed them."""

    name = "plain"
    identity = True

    def prefix_stable(self, n: int, deep: Deep) -> int:
        return n
