"""Every unit stays for as long as a later row can see it."""

from dataclasses import dataclass

from winnow.policies.keep.base import KeepPolicy


@dataclass(frozen=True)
class Everything(KeepPolicy):
    """Keep every unit; in sliding-window layers, every unit still inside the window."""

    name = "everything"
    identity = True
