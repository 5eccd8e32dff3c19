"""Whom a model that learns under SPEED is compared with, and the loss of one that learns what they say."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from winnow.learn.packed import packed_logits
from winnow.learn.rows import IGNORED, Batch
from winnow.policies.compute.speed import Speed
from winnow.runtime.decoder import Decoder


@dataclass(frozen=True)
class Reference:
    """Whom a model that learns is compared with, all layers computed. teacher: the one of the run, or `base` again;
    base: the model without adapters, for conversations that name it."""

    teacher: Decoder
    base: Decoder

    def predicted(self, batch: Batch, policy: Speed) -> Tensor:
        """What they say of each supervised token: [supervised, vocab] float32 log-probabilities, without gradients."""
        by_base, whole = batch.by_base[batch.labels != IGNORED], replace(policy, cutoff=1.0)
        with torch.no_grad():
            if self.teacher is self.base or not by_base.any():
                return log_probabilities(self.teacher, batch, whole)
            said = log_probabilities(self.base, batch, whole)
            if not by_base.all():
                said[~by_base] = log_probabilities(self.teacher, batch, whole)[~by_base]
            return said


def distilled_loss(
    decoder: Decoder, batch: Batch, policy: Speed, reference: Reference, *, checkpointing: bool = False
) -> Tensor:
    """The sum over supervised tokens of the KL divergence from what teaches them says there.

    Source: Hinton, Vinyals and Dean, arXiv:1503.02531, at a temperature of 1 and without the labels.
    """
    wanted = reference.predicted(batch, policy)
    said = log_probabilities(decoder, batch, policy, checkpointing=checkpointing)
    return F.kl_div(said, wanted, reduction="sum", log_target=True)


def log_probabilities(decoder: Decoder, batch: Batch, policy: Speed, *, checkpointing: bool = False) -> Tensor:
    """Of every word at each supervised token, [supervised, vocab] float32; see `packed_logits`."""
    return packed_logits(decoder, batch, policy, checkpointing=checkpointing).log_softmax(-1)
