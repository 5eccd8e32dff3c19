"""Rows of a prompt read all that is before them."""

from dataclasses import dataclass

from winnow.policies.compute.base import Deep
from winnow.policies.prefill.base import PrefillPolicy


@dataclass(frozen=True)
class Causal(PrefillPolicy):
    """Read all kept units for every row of a prompt."""

    name = "causal"
    identity = True

    def prefix_stable(self, n: int, deep: Deep) -> int:
        return n
