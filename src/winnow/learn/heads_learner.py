"""One step of training of retaining heads: their error on a sample, its gradient, the update."""

from dataclasses import astuple, dataclass
from statistics import fmean

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from winnow.kernels.linear import multiplied_in
from winnow.learn.heads_recipe import HeadsRecipe
from winnow.learn.labels import Labelled
from winnow.learn.learner import Learner, check_loss
from winnow.runtime.heads import RetainingHeads

BETAS = (0.9, 0.95)
BEST = 0.1  # the share of a prompt's tokens that `overlap` looks at


@dataclass(frozen=True)
class Figures:
    """How heads do on samples. regression: mean smooth L1 error; smoothness: mean squared difference of neighbouring
    scores, summed over layers; loss: what is minimised; overlap: share of the tokens of the highest scores that are
    among those of the highest targets, mean over layers and KV heads."""

    loss: float
    regression: float
    smoothness: float
    overlap: float


class HeadsLearner(Learner):
    """Heads in float32, trained in place, and the optimizer of all of them.

    No layer's heads see those of another, and clipping and AdamW look at each value alone; so the gradient is taken
    one layer after the other, which needs the memory of one, and is that of the whole loss.
    """

    def __init__(self, heads: RetainingHeads, recipe: HeadsRecipe) -> None:
        self.heads, self.recipe = heads, recipe
        weights = [weight.requires_grad_() for weight in (*heads.first, *heads.second)]
        super().__init__(weights, torch.optim.AdamW(weights, lr=recipe.learning_rate, betas=BETAS, fused=True))

    def learn(self, step: int, labelled: Labelled) -> Figures:
        """Take step number `step`, counted from 0; returns the means of its updates.

        Raises InputError where the loss is no number.
        """
        found = []
        for piece in labelled.split(self.recipe.updates):
            self.optimizer.zero_grad()
            figures = self._figures(piece, gradient=True)
            check_loss(figures.loss, step)
            nn.utils.clip_grad_value_(self.weights, self.recipe.clip)
            self.update(self.recipe.rate(step))
            found.append(astuple(figures))
        return Figures(*map(fmean, zip(*found, strict=True)))

    @torch.no_grad()
    def judge(self, labelled: Labelled) -> Figures:
        """How the heads do on a sample; they stay as they are."""
        return self._figures(labelled, gradient=False)

    def _figures(self, labelled: Labelled, *, gradient: bool) -> Figures:
        """Over the layers of a sample; adds to the weights' gradients where those are wanted."""
        layers, kind = self.heads.config.layers, torch.bfloat16 if self.recipe.bf16 else torch.float32
        dtype = multiplied_in(kind, self.device.type)
        heads = RetainingHeads(self.heads.config, [weight.to(dtype) for weight in self.heads.first], self.heads.second)
        rows = []
        for layer, (inputs, targets) in enumerate(zip(labelled.inputs, labelled.targets, strict=True)):
            scores = heads.score(layer, inputs).T
            regression, smoothness = errors(scores, targets)
            if gradient:
                (regression / layers + self.recipe.smoothing * smoothness).backward()
            rows.append(torch.stack((regression.detach(), smoothness.detach(), overlap(scores.detach(), targets))))
        table = torch.stack(rows)
        regression, smoothness, best = (table.sum(0) / table.new_tensor((layers, 1, layers))).tolist()
        return Figures(regression + self.recipe.smoothing * smoothness, regression, smoothness, best)


def errors(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The two parts of a layer's loss, scalars; scores, targets: [kv_heads, tokens], at least two tokens.

    The mean smooth L1 error, and the mean squared difference of the scores of neighbouring tokens.
    """
    return F.smooth_l1_loss(scores, targets), scores.diff(dim=-1).square().mean()


def overlap(scores: Tensor, targets: Tensor) -> Tensor:
    """Which share of the tokens with the highest scores has the highest targets, mean over heads.

    scores, targets: [kv_heads, tokens]; the highest tenth, at least one token.
    """
    count = max(1, int(BEST * targets.shape[-1]))
    chosen = [torch.zeros_like(x, dtype=torch.bool).scatter(-1, x.topk(count).indices, True) for x in (scores, targets)]
    return (chosen[0] & chosen[1]).sum().float() / (count * len(targets))
