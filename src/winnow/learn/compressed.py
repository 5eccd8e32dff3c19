"""A text that is read chunk by chunk in a cache of fixed size, with gradients to the convolutions that make its sums.

The model stays as it is; what a chunk's rows attend to is the layer's memory and themselves. Memory carries no gradient
from one chunk to the next: of every chunk the compression right before it is learnt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from winnow.cache.sums import Sums
from winnow.learn.call import LayerCall
from winnow.policies.keep.lococo import LoCoCo, parted
from winnow.runtime.block import Tables
from winnow.runtime.convolutions import Convolutions
from winnow.runtime.decoder import Decoder


class Memory(NamedTuple):
    """Of a layer: keys, values [kv_heads, units, head_dim], rotated, and scores [kv_heads, units] of the last chunk."""

    keys: Tensor
    values: Tensor
    scores: Tensor


class Compressed:
    """One text under `policy`, as far as it has been read.

    Source: LoCoCo, arXiv:2406.05317, and the authors' code: compress, append, attend, score.
    """

    def __init__(self, decoder: Decoder, policy: LoCoCo, convolutions: Convolutions, ids: Sequence[int]) -> None:
        self.decoder, self.policy, self.convolutions = decoder, policy, convolutions
        self.ids = torch.tensor(list(ids), device=decoder.device)
        self.frequencies = decoder.rotary.choose(len(ids))
        self.known = 0
        shape = decoder.shape
        nothing = torch.empty(shape.kv_heads, 0, shape.head_dim, dtype=decoder.dtype, device=decoder.device)
        self.memory = [Memory(nothing, nothing, nothing[..., 0].float())] * shape.layers

    def read(self) -> Tensor:
        """Read the next chunk: the mean cross-entropy of the tokens that follow each of its own, a scalar."""
        decoder, first = self.decoder, self.known
        rows = self.ids[first : first + self.policy.chunk]
        positions = torch.arange(first, first + len(rows), device=decoder.device)
        tables = decoder.rotary.tables(self.frequencies, positions)
        hidden = decoder.embed(rows)
        for layer in range(decoder.shape.layers):
            hidden = decoder.layer(layer, hidden, _Call(self, layer, tables))
        self.known += len(rows)
        following = self.ids[first + 1 : self.known + 1]
        return F.cross_entropy(decoder.logits(hidden[0, : len(following)]), following)

    def before(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer that a chunk's rows find: compressed, where it is time to, with gradients."""
        keys, values, scores = self.memory[layer]
        policy, sums = self.policy, self.convolutions.sums
        held = policy.pattern(self.decoder.shape.contexts[layer]).held
        if not held or keys.shape[1] < policy.budget + policy.slack:
            return keys, values
        kept, parts, seeds = parted(scores, policy.budget - sums, sums, policy.recent)
        summed = _at(keys, parts), _at(values, parts)
        weights = self.convolutions(layer, *summed, seeds)
        made = Sums(kept, parts, weights, seeds).of(summed)
        return torch.cat((_at(keys, kept), made[0]), 1), torch.cat((_at(values, kept), made[1]), 1)


@dataclass(frozen=True)
class _Call(LayerCall):
    """A chunk attends to what its layer remembers and to itself."""

    text: Compressed
    layer: int
    tables: Tables

    def place(self) -> tuple[Decoder, int, Tables]:
        return self.text.decoder, self.layer, self.tables

    def attended(self, q: Tensor, k: Tensor, v: Tensor, special: dict[str, Any]) -> Tensor:
        keys, values = self.text.before(self.layer)
        keys, values = torch.cat((keys, k), 1), torch.cat((values, v), 1)
        out, votes = attended(q, keys, values, **special)
        newest = slice(None) if special["window"] is None else slice(-special["window"], None)
        self.text.memory[self.layer] = Memory(keys[:, newest].detach(), values[:, newest].detach(), votes.detach())
        return out


def attended(
    q: Tensor, keys: Tensor, values: Tensor, *, scale: float, window: int | None, softcap: float | None,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The attention of the newest rows, with the weights at hand, in float32.

    q: [q_heads, rows, head_dim]; keys, values: [kv_heads, units, head_dim], the last `rows` units the rows' own.
    Returns [rows, q_heads, head_dim], and what units got of all rows, as the mean over a group, [kv_heads, units].
    """
    (q_heads, rows, _), (kv_heads, units, _) = q.shape, keys.shape
    grouped = q.float().view(kv_heads, q_heads // kv_heads, rows, -1)
    logits = scale * grouped @ keys.float()[:, None].mT  # [kv_heads, group, rows, units]
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    slots = torch.arange(units, device=q.device)
    distance = slots[units - rows :, None] - slots
    hidden = (distance < 0) if window is None else (distance < 0) | (distance >= window)
    logits = logits.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        beside = sinks.float().view(kv_heads, -1, 1, 1).expand(*logits.shape[:-1], 1)
        logits = torch.cat((logits, beside), -1)
    weights = logits.softmax(-1)[..., :units]
    out = (weights @ values.float()[:, None]).permute(2, 0, 1, 3).reshape(rows, q_heads, -1)
    return out, weights.mean(1).sum(1)


def _at(x: Tensor, index: Tensor) -> Tensor:
    """x [kv_heads, units, head_dim] at `index`, [kv_heads, some]."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))
