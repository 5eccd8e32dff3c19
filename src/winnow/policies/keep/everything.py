"""Every unit stays for as long as a later row can see it."""

from dataclasses import dataclass

from winnow.policies.compute.base import Deep
from winnow.policies.keep.base import KeepPolicy


@dataclass(frozen=True)
class Everything(KeepPolicy):
    """Keep every unit; in sliding-window layers, every unit still inside the window."""

    name = "everything"
    identity = True

    def prefix_stable(self, n: int, deep: Deep) -> int:
        """All: what has left a layer's window is seen by no row of any longer prompt either."""
        return n
