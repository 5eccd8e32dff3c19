"""The teacher-forced forward of SPEED over a flat batch, with gradients.

All rows of all conversations go through the layers below the cutoff side by side. There the rows of every assistant
turn are gathered, each turn a segment of its own, and only these go on. No row is padded, and nothing is computed above
the cutoff for a prompt token that is no anchor, so no gradient can reach it there.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from winnow.learn.attention import attend_alone, attend_segment
from winnow.learn.call import LayerCall
from winnow.learn.rows import IGNORED, Batch
from winnow.policies.compute.speed import Speed
from winnow.runtime.block import Tables
from winnow.runtime.decoder import Decoder


def packed_loss(decoder: Decoder, batch: Batch, policy: Speed, *, checkpointing: bool = False) -> Tensor:
    """The sum of the cross-entropies of the batch's supervised tokens; see `packed_logits`."""
    logits = packed_logits(decoder, batch, policy, checkpointing=checkpointing)
    return F.cross_entropy(logits, batch.labels[batch.labels != IGNORED], reduction="sum")


def packed_logits(decoder: Decoder, batch: Batch, policy: Speed, *, checkpointing: bool = False) -> Tensor:
    """What the model, driven, predicts for each supervised token: [supervised, vocab] float32, with gradients.

    Attention dropout is not applied. A rope scaling that depends on the length takes the whole conversation's.
    checkpointing: keep only the input of each layer, and compute the layer again for its gradients.

    Source: SPEED, arXiv:2605.06105: prompt positions follow the prefill rule, assistant positions the decode rule.
    """
    cut = policy.cut(decoder.shape)
    rows = Rows.of_conversations(decoder, batch.lengths)
    calls = [Call(rows, layer) for layer in range(cut)]
    hidden = through(calls, decoder.embed(batch.input_ids[0]), checkpointing=checkpointing)
    hidden = hidden[:, batch.upper]
    rows = rows.gathered(batch.upper, batch.upper_lengths, batch.upper_anchors if policy.self_only else None)
    hidden = through(
        [Call(rows, layer) for layer in range(cut, decoder.shape.layers)], hidden, checkpointing=checkpointing
    )
    learnt = (batch.labels != IGNORED).nonzero()[:, 0]
    return decoder.logits(hidden[0, learnt - 1])


@contextmanager
def packed_forward(decoder: Decoder, loss: Callable[[Batch], Tensor]) -> Iterator[None]:
    """Within: calling the decoder's model with the fields of a Batch gives {"loss": ...}, also through wrappers.

    loss: of a batch, the sum over supervised tokens; what is given is divided by `num_items_in_batch`: of all batches
    of an optimizer step. After, also after an error, the model is stock again.
    """

    def forward(num_items_in_batch: Tensor | float | None = None, **keywords: Any) -> dict[str, Tensor]:
        batch = Batch(**{name: keywords[name] for name in Batch.__dataclass_fields__})
        decoder.tree.train(model.training)  # a trainer changes the mode of the model that it holds
        count = (batch.labels != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        return {"loss": loss(batch) / count}

    model: Any = decoder.model
    with decoder.driving():
        model.forward = forward
        try:
            yield
        finally:
            vars(model).pop("forward", None)
            vars(model).pop("_original_forward", None)  # what accelerate leaves behind under mixed precision


def through(calls: "Sequence[Call]", hidden: Tensor, *, checkpointing: bool) -> Tensor:
    """Rows, [1, rows, hidden], through the layers of `calls`. checkpointing: see `packed_logits`."""
    for call in calls:
        decoder = call.rows.decoder
        if checkpointing:
            hidden = checkpoint(decoder.layer, call.layer, hidden, call, use_reentrant=False)
        else:
            hidden = decoder.layer(call.layer, hidden, call)
    return hidden


@dataclass(frozen=True)
class Rows:
    """Rows of a flat batch that go through layers together; a row sees its own segment only, causally by position.

    positions: [rows]. borders: where segments begin, and the count of rows. alone: for every segment, how many of its
    first rows are seen by all later ones, the others seeing besides these only themselves; None: all are seen.
    """

    decoder: Decoder
    positions: Tensor
    borders: list[int]
    tables: Tables
    alone: Sequence[int] | None = None

    @classmethod
    def of_conversations(cls, decoder: Decoder, lengths: Sequence[int]) -> "Rows":
        """All rows of every conversation."""
        each = [torch.arange(length, device=decoder.device) for length in lengths]
        tables = [
            decoder.rotary.tables(decoder.rotary.choose(length), positions)
            for length, positions in zip(lengths, each, strict=True)
        ]
        joined = {kind: tuple(torch.cat([t[kind][i] for t in tables], 1) for i in range(2)) for kind in tables[0]}
        return cls(decoder, torch.cat(each), [0, *accumulate(lengths)], joined)  # type: ignore[arg-type]

    def gathered(self, index: Tensor, lengths: Sequence[int], alone: Sequence[int] | None) -> "Rows":
        """The rows at `index`, in new segments."""
        tables = {kind: (cos[:, index], sin[:, index]) for kind, (cos, sin) in self.tables.items()}
        return Rows(self.decoder, self.positions[index], [0, *accumulate(lengths)], tables, alone)


@dataclass(frozen=True)
class Call(LayerCall):
    """Each segment attends to itself."""

    rows: Rows
    layer: int

    def place(self) -> tuple[Decoder, int, Tables]:
        return self.rows.decoder, self.layer, self.rows.tables

    def attended(self, q: Tensor, k: Tensor, v: Tensor, special: dict[str, Any]) -> Tensor:
        q, k = q.to(v.dtype).transpose(0, 1), k.to(v.dtype)
        return torch.cat([self._attend(segment, q, k, v, special) for segment in range(len(self.rows.borders) - 1)])

    def _attend(self, segment: int, q: Tensor, k: Tensor, v: Tensor, special: dict[str, Any]) -> Tensor:
        rows = slice(self.rows.borders[segment], self.rows.borders[segment + 1])
        part = q[rows], k[:, rows], v[:, rows], self.rows.positions[rows]
        if self.rows.alone is None:
            return attend_segment(*part, **special)
        return attend_alone(*part, anchors=self.rows.alone[segment], **special)
