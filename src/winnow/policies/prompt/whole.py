"""The model sees the whole prompt."""

from dataclasses import dataclass

from winnow.policies.compute.base import Deep
from winnow.policies.prompt.base import PromptPolicy


@dataclass(frozen=True)
class Whole(PromptPolicy):
    """Show the model every prompt token."""

    name = "whole"
    identity = True

    def prefix_stable(self, n: int, deep: Deep) -> int:
        return n
