"""One step of training of gates: how far what heads give out is from full attention, its gradient, the update."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from winnow.learn.attention import attend_alone, attend_segment
from winnow.learn.gates_recipe import GatesRecipe
from winnow.learn.labels import Sample
from winnow.learn.learner import Learner, check_loss
from winnow.learn.packed import Call, Rows, through
from winnow.runtime.decoder import Decoder


@dataclass(frozen=True)
class GatedCall(Call):
    """Attention of which each KV head gives out `gate * full + (1 - gate) * streaming`. gates: [kv_heads]."""

    gates: Tensor
    sink: int
    recent: int

    def _attend(self, segment: int, q: Tensor, k: Tensor, v: Tensor, special: dict[str, Any]) -> Tensor:
        full = attend_segment(q, k, v, self.rows.positions, **special)
        if len(q) <= self.sink:
            return full
        streaming = attend_alone(q, k, v, self.rows.positions, anchors=self.sink, recent=self.recent, **special)
        gates = self.gates.repeat_interleave(q.shape[1] // len(self.gates)).to(full.dtype)[:, None]
        return gates * full + (1 - gates) * streaming


class GatesLearner(Learner):
    """A gate for each KV head of a model, which itself stays as it is: [layers, kv_heads] float32, all 1 at first.

    The loss of a sample is the squared error of the last hidden states, after the norm, mean over the hidden dimensions
    and the tokens behind the prompt, and `penalty` times the mean of all gates. Gates are brought back to 0 and 1 after
    every step.
    """

    def __init__(self, decoder: Decoder, recipe: GatesRecipe) -> None:
        self.decoder, self.recipe = decoder, recipe
        shape = decoder.shape
        self.gates = torch.ones(
            shape.layers, shape.kv_heads, dtype=torch.float32, device=decoder.device, requires_grad=True
        )
        super().__init__([self.gates], torch.optim.AdamW([self.gates], lr=recipe.learning_rate, weight_decay=0.0))

    def learn(self, step: int, sample: Sample) -> dict[str, float]:
        """Take step number `step`, counted from 0. Raises InputError where the loss is no number."""
        error = self.error(sample)
        loss = error + self.recipe.penalty * self.gates.mean()
        check_loss(loss.item(), step, "use the model in float32 or bfloat16")
        [self.gates.grad] = torch.autograd.grad(loss, [self.gates])  # of nothing else: the model's weights stay untold
        figures = self._figures(error)
        self.update(self.recipe.rate(step))
        with torch.no_grad():
            self.gates.clamp_(0, 1)
        return figures

    @torch.no_grad()
    def judge(self, sample: Sample) -> dict[str, float]:
        """How the gates do on a sample; they stay as they are."""
        return self._figures(self.error(sample))

    def _figures(self, error: Tensor) -> dict[str, float]:
        gates = self.gates.detach()
        mean = gates.mean().item()
        distance = error.item()
        return {"loss": distance + self.recipe.penalty * mean, "distance": distance, "gate": mean}

    def error(self, sample: Sample) -> Tensor:
        """How far the rows behind the prompt are from those of full attention."""
        decoder, recipe = self.decoder, self.recipe
        rows = Rows.of_conversations(decoder, [len(sample.ids)])
        layers, behind = range(decoder.shape.layers), slice(sample.prompt, None)
        hidden = decoder.embed(torch.tensor(sample.ids, device=decoder.device))
        with torch.no_grad():
            expected = through([Call(rows, layer) for layer in layers], hidden, checkpointing=False)
        calls = [GatedCall(rows, layer, self.gates[layer], recipe.sink, recipe.recent) for layer in layers]
        found = through(calls, hidden.detach(), checkpointing=recipe.checkpointing)
        found, expected = (decoder.tree.model.norm(each[:, behind]).float() for each in (found, expected))
        error: Tensor = (found - expected).square().mean()
        return error
