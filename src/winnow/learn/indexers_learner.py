"""One step of training of indexers: how far what they say is from attention, its gradient, the update."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from winnow.learn.indexers_recipe import IndexersRecipe
from winnow.learn.labels import Sample
from winnow.learn.learner import Learner, check_loss
from winnow.learn.packed import Call, Rows
from winnow.runtime.decoder import Decoder
from winnow.runtime.indexers import Indexers

BEST = 0.1  # the share of the units that `mass` looks at


@dataclass(frozen=True)
class ToldCall(Call):
    """Attention that says what units some rows attend to. asking: [some], their numbers; told: gets what they do."""

    asking: Tensor
    told: list[Tensor] = field(default_factory=list)

    def _attend(self, segment: int, q: Tensor, k: Tensor, v: Tensor, special: dict[str, Any]) -> Tensor:
        self.told.append(distribution(q[self.asking], k, self.asking, **special))
        return super()._attend(segment, q, k, v, special)


def distribution(
    q: Tensor, k: Tensor, positions: Tensor, *, scale: float, window: int | None, softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:  # fmt: skip
    """The attention of rows at `positions`, [rows, q_heads, head_dim], to keys [kv_heads, units, head_dim] from
    position 0 on, summed over the heads and divided by its sum: [rows, units] float32."""
    (rows, q_heads, _), (kv_heads, units, _) = q.shape, k.shape
    grouped = q.float().view(rows, kv_heads, q_heads // kv_heads, -1).permute(1, 2, 0, 3)
    logits = scale * grouped @ k.float()[:, None].mT  # [kv_heads, group, rows, units]
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    logits = logits.masked_fill(~seen(positions, units, window), float("-inf"))
    if sinks is not None:
        beside = sinks.float().view(kv_heads, -1, 1, 1).expand(*logits.shape[:-1], 1)
        logits = torch.cat((logits, beside), -1)
    summed = logits.softmax(-1)[..., :units].sum((0, 1))
    return summed / summed.sum(-1, keepdim=True)


def seen(positions: Tensor, units: int, window: int | None = None) -> Tensor:
    """[rows, units] bool: which units, from position 0 on, rows at `positions` see."""
    distance = positions[:, None] - torch.arange(units, device=positions.device)
    return (distance >= 0) & (distance < (units if window is None else window))


class Lesson(NamedTuple):
    """What a text teaches in a layer. hidden: [tokens, hidden], of its rows as they enter; target: `distribution` of
    those at `asking`, [some]."""

    layer: int
    hidden: Tensor
    asking: Tensor
    target: Tensor


def lessons(decoder: Decoder, sample: Sample, recipe: IndexersRecipe, seed: int) -> Iterator[Lesson]:
    """Of every layer without a sliding window, of a text under full attention. seed: of the rows that are drawn."""
    ids = torch.tensor(sample.ids[: recipe.length], device=decoder.device)
    asking = drawn(len(ids), sample.prompt, recipe.rows, seed).to(ids.device)
    rows = Rows.of_conversations(decoder, [len(ids)])
    with torch.no_grad():
        hidden = decoder.embed(ids)
    for layer, window in enumerate(decoder.shape.windows):
        call = Call(rows, layer) if window is not None else ToldCall(rows, layer, asking)
        with torch.no_grad():
            entering, hidden = hidden, decoder.layer(layer, hidden, call)
        if isinstance(call, ToldCall):
            yield Lesson(layer, entering[0], asking, *call.told)


def drawn(tokens: int, prompt: int, rows: int, seed: int) -> Tensor:
    """[rows or tokens] numbers of rows, ascending: those behind the prompt before others, at random."""
    source, prompt = torch.Generator().manual_seed(seed), min(prompt, tokens)
    behind = prompt + torch.randperm(tokens - prompt, generator=source)
    return torch.cat((behind, torch.randperm(prompt, generator=source)))[:rows].sort().values


class IndexersLearner(Learner):
    """Indexers in float32, trained in place, and the optimizer of all of them; the model gets no gradient.

    The loss of a text is KL(p || softmax of I), in nats, mean over rows and layers: p is how a row attends to the units
    it sees, summed over all heads and normalised, I what the layer's indexer says of them.
    """

    def __init__(self, indexers: Indexers, recipe: IndexersRecipe) -> None:
        self.indexers, self.recipe = indexers, recipe
        weights = [each.requires_grad_() for layer in indexers.layers.values() for each in vars(layer).values()]
        super().__init__(weights, torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=0.0))

    def learn(self, step: int, decoder: Decoder, sample: Sample) -> dict[str, float]:
        """Take step number `step`, counted from 0. Raises InputError where the loss is no number."""
        self.optimizer.zero_grad()
        figures = self._figures(decoder, sample, self.recipe.seed + step, gradient=True)
        check_loss(figures["loss"], step)
        self.update(self.recipe.rate(step))
        return figures

    @torch.no_grad()
    def judge(self, decoder: Decoder, sample: Sample) -> dict[str, float]:
        """How the indexers do on a sample; they stay as they are."""
        return self._figures(decoder, sample, self.recipe.seed, gradient=False)

    def _figures(self, decoder: Decoder, sample: Sample, seed: int, *, gradient: bool) -> dict[str, float]:
        """loss; mass: of the attention what is on the tenth of a row's units that the indexer ranks highest. Mean over
        layers; adds to the weights' gradients where those are wanted, one layer after the other."""
        figures = []
        for layer, hidden, asking, target in lessons(decoder, sample, self.recipe, seed):
            indexer = self.indexers.layers[layer]
            scores = indexer.scores(hidden[asking], indexer.keys(hidden))
            scores = scores.masked_fill(~seen(asking, len(hidden)), float("-inf"))
            loss = divergence(target, scores)
            if gradient:
                (loss / len(self.indexers.layers)).backward()
            figures.append(torch.stack((loss.detach(), best_mass(target, scores.detach(), asking))))
        loss, mass = torch.stack(figures).mean(0).tolist()
        return {"loss": loss, "mass": mass}


def divergence(target: Tensor, scores: Tensor) -> Tensor:
    """KL(target || softmax of scores), a scalar, mean over rows: [rows, units], -inf where a row sees no unit."""
    logarithm = scores.log_softmax(-1).masked_fill(scores.isneginf(), 0.0)
    return (torch.xlogy(target, target) - target * logarithm).sum(-1).mean()


def best_mass(target: Tensor, scores: Tensor, positions: Tensor) -> Tensor:
    """Of each row's distribution what is on the tenth of its units with the highest scores, at least one; the mean."""
    ranked = target.gather(1, scores.argsort(-1, descending=True)).cumsum(-1)
    count = (BEST * (positions + 1)).ceil().long()
    return ranked.gather(1, count[:, None] - 1).mean()
