"""Weights that are learnt and what their optimizer knows, as a checkpoint holds them."""

import math

import torch
from torch import Tensor

from winnow.errors import InputError


class Learner:
    """weights: float32, trained in place by `optimizer`, which has one group of them."""

    def __init__(self, weights: list[Tensor], optimizer: torch.optim.Optimizer) -> None:
        self.weights, self.optimizer = weights, optimizer

    @property
    def device(self) -> torch.device:
        return self.weights[0].device

    def update(self, rate: float) -> None:
        """Change the weights by their gradients, at a learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()

    def state(self) -> dict[str, Tensor]:
        """What another learner needs to go on: every weight, and what the optimizer knows of it."""
        weights = {f"weight.{index}": weight.detach() for index, weight in enumerate(self.weights)}
        known = self.optimizer.state_dict()["state"]
        return weights | {f"{name}.{index}": each for index, of in known.items() for name, each in of.items()}

    @torch.no_grad()
    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on from a state."""
        known: dict[int, dict[str, Tensor]] = {index: {} for index in range(len(self.weights))}
        for key, each in state.items():
            name, index = key.split(".")
            known[int(index)][name] = each
        for weight, of in zip(self.weights, known.values(), strict=True):
            weight.copy_(of.pop("weight"))
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": known})


def check_loss(loss: float, step: int, way: str = "use a smaller learning rate, or the model in float32") -> None:
    """Raise InputError where the loss of a step, counted from 0, is no number. way: out of it."""
    if not math.isfinite(loss):
        raise InputError(f"the loss is {loss} at step {step + 1}; {way}")
