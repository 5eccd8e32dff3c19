"""The definition of training under SPEED: the stock model, every row in every layer, and a mask for each layer."""

from array import array
from contextlib import ExitStack

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from winnow.learn.chat import Conversation, Turn
from winnow.learn.rows import Segment, segments
from winnow.policies.compute.speed import Speed
from winnow.runtime.decoder import Decoder


def conversation(tokens: int, turns: list[tuple[int, int, int]], system: int | None = 2, seed: int = 0) -> Conversation:
    """Random tokens of the small models' vocabulary; turns: (start, answer, end)."""
    source = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 97, (tokens,), generator=source).tolist()
    return Conversation(array("i", ids), tuple(Turn(*turn) for turn in turns), system)


SEVERAL = conversation(30, [(5, 7, 9), (12, 14, 17), (20, 22, 30)])
SINGLE = conversation(19, [(11, 13, 19)], system=3, seed=1)


def upper_rows(of: Conversation, anchors: str, decode_from: str = "header") -> list[list[int]]:
    """The positions that go on from the cutoff, turn by turn."""
    return [segment.positions for segment in segments(of, anchors, decode_from)]


def dense_loss(model: PreTrainedModel, conversations: list[Conversation], policy: Speed) -> Tensor:
    """The sum of cross-entropies, one forward of the whole conversation for each turn, with gradients."""
    shape = Decoder(model).shape
    losses = []
    for each in conversations:
        for turn, segment in zip(each.turns, segments(each, policy.anchors, policy.decode_from), strict=True):
            masks = [
                _mask(len(each.ids), None if layer < policy.cut(shape) else segment, window, policy.self_only)
                for layer, window in enumerate(shape.windows)
            ]
            ids = torch.tensor([list(each.ids)])
            logits = _masked(model, ids, masks)[turn.answer - 1 : turn.end - 1]
            losses.append(F.cross_entropy(logits, ids[0, turn.answer : turn.end], reduction="sum"))
    return torch.stack(losses).sum()


def _mask(rows: int, segment: Segment | None, window: int | None, self_only: bool) -> Tensor:
    """[rows, rows] bool, which row sees which; in the upper layers rows outside the segment see themselves."""
    at = torch.arange(rows)
    seen = at[:, None] >= at
    if window is not None:
        seen &= at[:, None] - at < window
    if segment is not None:
        inside = torch.zeros(rows, dtype=torch.bool)
        inside[segment.positions] = True
        anchor = torch.zeros(rows, dtype=torch.bool)
        anchor[segment.positions[: segment.anchors]] = True
        seen &= inside[:, None] & (anchor if self_only else inside)
    return seen | torch.eye(rows, dtype=torch.bool)


def _masked(model: PreTrainedModel, ids: Tensor, masks: list[Tensor]) -> Tensor:
    """The stock forward, [rows, vocab] float32, where each layer gets its own mask."""
    with ExitStack() as stack:
        for layer, mask in zip(model.model.layers, masks, strict=True):
            added = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)[None, None]
            handle = layer.register_forward_pre_hook(
                lambda module, args, keywords, added=added: (args, {**keywords, "attention_mask": added}),
                with_kwargs=True,
            )
            stack.callback(handle.remove)
        return model(ids, use_cache=False).logits[0].float()
