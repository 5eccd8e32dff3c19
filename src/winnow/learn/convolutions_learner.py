"""One step of training of LoCoCo's convolutions: what texts lose, its gradient, the update."""

from collections.abc import Iterator, Sequence

import torch

from winnow.learn.compressed import Compressed
from winnow.learn.convolutions_recipe import ConvolutionsRecipe
from winnow.learn.learner import Learner, check_loss
from winnow.policies.keep.lococo import LoCoCo
from winnow.runtime.convolutions import Convolutions
from winnow.runtime.decoder import Decoder


def policy_of(recipe: ConvolutionsRecipe) -> LoCoCo:
    """What convolutions are trained for."""
    return LoCoCo(budget=recipe.budget, chunk=recipe.chunk)


class ConvolutionsLearner(Learner):
    """Convolutions in float32, trained in place, and the optimizer of all of them; the model gets no gradient."""

    def __init__(self, convolutions: Convolutions, recipe: ConvolutionsRecipe) -> None:
        self.convolutions, self.recipe = convolutions, recipe
        weights = [each.requires_grad_() for layer in convolutions.layers for each in vars(layer).values()]
        optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=0.0)
        super().__init__(weights, optimizer)

    def learn(self, step: int, decoder: Decoder, texts: Sequence[Sequence[int]]) -> float:
        """Take step number `step`, counted from 0; returns the loss, in nats per token: the mean over texts, of each
        over the chunks that were read right after a compression.

        Raises InputError where the loss is no number.
        """
        self.optimizer.zero_grad()
        loss = sum(part for ids in texts for part in self._parts(step, decoder, ids, len(texts)))
        self.update(self.recipe.rate(step))
        return loss

    def _parts(self, step: int, decoder: Decoder, ids: Sequence[int], texts: int) -> Iterator[float]:
        """Read a text, and add the gradients of its chunks; yields their parts of the loss."""
        policy, tokens = policy_of(self.recipe), len(ids)
        starts = range(0, tokens - 1, policy.chunk)
        learnt = {start for start in starts if start and policy.next_eviction(start - 1, tokens) == start}
        text = Compressed(decoder, policy, self.convolutions, ids)
        for start in starts:
            with decoder.driving(), torch.set_grad_enabled(start in learnt):
                loss = text.read()
            check_loss(loss.item(), step)
            if start in learnt:
                part = loss / (len(learnt) * texts)
                self._add(part)
                yield part.item()

    def _add(self, loss: torch.Tensor) -> None:
        """Add a chunk's gradients; layers with a sliding window have none."""
        found = torch.autograd.grad(loss, self.weights, allow_unused=True)
        for weight, gradient in zip(self.weights, found, strict=True):
            if gradient is not None:
                weight.grad = gradient if weight.grad is None else weight.grad + gradient
