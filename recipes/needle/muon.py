"""Muon (Jordan et al., 2024): momentum, made orthogonal by a Newton-Schulz iteration, for matrices inside the layers.

`torch.optim.Muon` gives the same updates one matrix at a time; stacking the matrices of a shape is several times as
fast for a small model on a CPU. The update is scaled to the size of an AdamW update, arXiv:2502.16982, section 2.2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


def orthogonal(x: Tensor, steps: int = 5) -> Tensor:
    """x: [matrices, rows, columns] -> the nearest (semi-)orthogonal matrices, roughly, in float32."""
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """One momentum buffer per matrix; weight decay is decoupled."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, *, momentum: float = 0.95, weight_decay: float = 0.05
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient."""
        for group in self.param_groups:
            shapes: dict[Any, list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    shapes[p.shape].append(p)
            for matrices in shapes.values():
                self._step(matrices, group)

    def _step(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        for p in matrices:
            self.state[p].setdefault("momentum", torch.zeros_like(p)).lerp_(p.grad, 1 - group["momentum"])
        looked_ahead = [p.grad.lerp(self.state[p]["momentum"], group["momentum"]) for p in matrices]
        updates = orthogonal(torch.stack(looked_ahead)).mul_(-group["lr"] * 0.2 * max(matrices[0].shape) ** 0.5)
        torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(matrices, list(updates.unbind()))
