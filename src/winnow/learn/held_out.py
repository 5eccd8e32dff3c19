"""What a model that learns under SPEED makes of conversations that it does not learn from."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from winnow.learn.chat import Conversation
from winnow.learn.reference import Reference, log_probabilities
from winnow.learn.rows import IGNORED, Batch
from winnow.policies.compute.speed import Speed
from winnow.runtime.decoder import Decoder


@dataclass(frozen=True)
class HeldOut:
    """Conversations, and what the reference said of each: its teacher, or the model before it learnt anything.

    before: [supervised, vocab] float32 log-probabilities of each conversation, on the CPU: vocab * 4 bytes a
    supervised token.
    """

    conversations: Sequence[Conversation]
    before: Sequence[Tensor]

    @classmethod
    def of(cls, reference: Reference, policy: Speed, conversations: Sequence[Conversation]) -> "HeldOut":
        says = partial(reference.predicted, policy=policy)
        said = _predicted(reference.teacher, says, policy, conversations)
        return cls(conversations, [each.cpu() for _, each in said])

    def figures(self, decoder: Decoder, policy: Speed) -> dict[str, float]:
        """Means over supervised tokens, in nats: the loss, and the KL divergence from what was said before."""
        loss = kl = 0.0
        count = 0
        says = partial(log_probabilities, decoder, policy=policy)
        with _without_dropout(decoder):
            predicted = _predicted(decoder, says, policy, self.conversations)
            for before, (labels, now) in zip(self.before, predicted, strict=True):
                loss += float(F.nll_loss(now, labels, reduction="sum"))
                kl += float(F.kl_div(now, before.to(now.device), reduction="sum", log_target=True))
                count += len(labels)
        return {"loss": loss / count, "kl": kl / count}


@contextmanager
def _without_dropout(decoder: Decoder) -> Iterator[None]:
    training = decoder.tree.training
    decoder.tree.eval()
    try:
        yield
    finally:
        decoder.tree.train(training)


def _predicted(
    decoder: Decoder, says: Callable[[Batch], Tensor], policy: Speed, conversations: Sequence[Conversation]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each conversation the supervised tokens, and what `says` gives there; decoder: whose model is called."""
    for each in conversations:
        batch = Batch.of([each], policy.anchors, policy.decode_from).to(decoder.device)
        with torch.no_grad(), decoder.driving():
            said = says(batch)
        yield batch.labels[batch.labels != IGNORED], said
