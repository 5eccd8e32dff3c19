"""Ranks that tokens share with their neighbours: what stands beside a token that is found is part of what it says.

A question finds the words that it has in common with a text, and what it asks for follows these words.
"""

import math
from typing import Protocol

from torch import Tensor
from torch.nn.functional import max_pool1d, pad

from winnow.parameters import Where

POOLED = Where("a kernel above 1", lambda policy: policy.kernel > 1)


class Pooling(Protocol):
    """A policy whose tokens share votes."""

    @property
    def kernel(self) -> int: ...

    @property
    def before(self) -> int: ...

    def require(self, condition: bool, message: str) -> None: ...


def check_kernel(policy: Pooling) -> None:
    """Raise PlanError where the kernel has no middle."""
    policy.require(
        policy.kernel % 2 == 1,
        f"kernel={policy.kernel} must be odd, for a token and neighbours on either side; use {policy.kernel + 1}",
    )


def sides(kernel: int, before: int, tokens: int) -> tuple[int, int]:
    """How many of so many tokens before a found one share its vote, `before` but no more than half of the kernel, and
    how many after it: the rest of the kernel. Neither is more than there are, so that a kernel takes no more than a
    text; a mean over more would be smaller, by the same factor for all."""
    ahead = min(before, kernel // 2)
    return min(ahead, tokens), min(kernel - 1 - ahead, tokens)


def best_nearby(votes: Tensor, among: Tensor, kernel: int, before: int) -> Tensor:
    """[tokens] float32: for each token of those `among`, [tokens] bool, the best vote of itself and of neighbours among
    them: those that it stands before, and after, by no more than `sides` says; the others' are left as they are."""
    if kernel == 1 or not bool(among.any()):
        return votes
    best, mine = votes.clone(), votes[among]
    ahead, behind = sides(kernel, before, len(mine))
    best[among] = max_pool1d(pad(mine, (behind, ahead), value=-math.inf)[None], ahead + behind + 1, stride=1)[0]
    return best
