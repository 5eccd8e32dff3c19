"""What a model that learns under SPEED makes of conversations that it does not learn from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from winnow.learn.chat import Conversation
from winnow.learn.packed import packed_logits
from winnow.learn.rows import IGNORED, Batch
from winnow.policies.compute.speed import Speed
from winnow.runtime.decoder import Decoder


@dataclass(frozen=True)
class HeldOut:
    """Conversations, and what the model, all layers computed, said of each before it learnt anything, or what teaches.

    before: [supervised, vocab] float32 log-probabilities of each conversation, on the CPU: vocab * 4 bytes a
    supervised token.
    """

    conversations: Sequence[Conversation]
    before: Sequence[Tensor]

    @classmethod
    def of(cls, decoder: Decoder, policy: Speed, conversations: Sequence[Conversation]) -> "HeldOut":
        whole = replace(policy, cutoff=1.0)
        return cls(conversations, [each.cpu() for _, each in _predicted(decoder, whole, conversations)])

    def figures(self, decoder: Decoder, policy: Speed) -> dict[str, float]:
        """Means over supervised tokens, in nats: the loss, and the KL divergence from what was said before."""
        loss = kl = 0.0
        count = 0
        predicted = _predicted(decoder, policy, self.conversations)
        for before, (labels, now) in zip(self.before, predicted, strict=True):
            loss += float(F.nll_loss(now, labels, reduction="sum"))
            kl += float(F.kl_div(now, before.to(now.device), reduction="sum", log_target=True))
            count += len(labels)
        return {"loss": loss / count, "kl": kl / count}


def _predicted(
    decoder: Decoder, policy: Speed, conversations: Sequence[Conversation]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Of each conversation the supervised tokens, and the log-probabilities that the model gives there."""
    training = decoder.tree.training
    decoder.tree.eval()
    try:
        for each in conversations:
            batch = Batch.of([each], policy.anchors, policy.decode_from).to(decoder.device)
            with torch.no_grad(), decoder.driving():
                logits = packed_logits(decoder, batch, policy)
            yield batch.labels[batch.labels != IGNORED], logits.log_softmax(-1)
    finally:
        decoder.tree.train(training)
