"""Ranks that tokens share with their neighbours: what stands beside a token that is found is part of what it says."""

from typing import Protocol

from torch import Tensor
from torch.nn.functional import max_pool1d


class Pooling(Protocol):
    """A policy with a `kernel`."""

    @property
    def kernel(self) -> int: ...

    def require(self, condition: bool, message: str) -> None: ...


def check_kernel(policy: Pooling) -> None:
    """Raise PlanError where the kernel has no middle."""
    policy.require(
        policy.kernel % 2 == 1,
        f"kernel={policy.kernel} must be odd, for as many neighbours on either side; use {policy.kernel + 1}",
    )


def best_nearby(votes: Tensor, among: Tensor, kernel: int) -> Tensor:
    """[tokens] float32: for each token of those `among`, [tokens] bool, the best vote of itself and of kernel // 2
    neighbours among them on either side; the others' are left as they are."""
    if kernel == 1 or not bool(among.any()):
        return votes
    best = votes.clone()
    best[among] = max_pool1d(votes[among][None], kernel, stride=1, padding=kernel // 2)[0]
    return best
