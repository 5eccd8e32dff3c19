"""What retaining heads learn from: the projections of a prompt's tokens, and how much the rest of the text wants each.

Both come from one pass over a text under full attention. Of a token behind the prompt nothing is kept but what it adds
to a maximum, so memory is that of the prompt's projections, and nothing is written to disk.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from winnow.engine.whole import forward_pass
from winnow.runtime.decoder import Decoder
from winnow.runtime.heads import joined
from winnow.runtime.observer import Observer
from winnow.runtime.shape import NOT_ROTATED

if TYPE_CHECKING:
    from winnow.runtime.segment import Segment

LOGIT_ROWS = 64  # logits of so many rows at a time: a row is as long as the prompt, for every query head


@dataclass(frozen=True)
class Sample:
    """A text to learn from: its token ids, of which the first `prompt` are the prompt."""

    ids: Sequence[int]
    prompt: int


@dataclass(frozen=True)
class Labelled:
    """What a sample teaches, per layer: inputs [tokens, inputs] in the model's dtype, targets [kv_heads, tokens]
    float32."""

    inputs: list[Tensor]
    targets: list[Tensor]

    def split(self, count: int) -> Iterator["Labelled"]:
        """Runs of its tokens, as long as each other but for rounding; at most `count`, each of two tokens at least."""
        tokens = len(self.inputs[0])
        count = min(count, tokens // 2)
        for start, stop in pairwise(tokens * at // count for at in range(count + 1)):
            yield Labelled([x[start:stop] for x in self.inputs], [y[:, start:stop] for y in self.targets])


def label(decoder: Decoder, sample: Sample, *, length: int, chunk: int) -> Labelled:
    """The projections of the first tokens of a prompt, and the greatest logit of each among all later queries.

    The target of a token is the maximum, over the query heads of its group and over all tokens behind the prompt, of
    `scale * query . key` before the softmax, both rotated at their places in the text. Where a family caps logits, or a
    sliding window hides the token, it is the logit all the same.

    Args:
        length: of so many of the prompt's tokens, the first ones; the whole prompt is computed all the same.
        chunk: tokens computed at a time.
    Source:
        Huang et al., Locret, arXiv:2410.01805, section 3.2; the scale is that of the authors' code.
    """
    observer = _Labels(decoder, sample.prompt, min(sample.prompt, length))
    for _ in forward_pass(decoder, list(sample.ids), chunk, observer):
        pass
    # Copies: what inference made cannot take part in a gradient.
    inputs = [torch.cat(pieces) for pieces in observer.inputs]
    return Labelled(inputs, [target.clone() for target in observer.targets])


class _Labels(Observer):
    """Collects, per layer: inputs, pieces [rows, inputs]; targets, [kv_heads, tokens], once there has been a query."""

    def __init__(self, decoder: Decoder, prompt: int, tokens: int) -> None:
        layers = range(decoder.shape.layers)
        self.inputs: list[list[Tensor]] = [[] for _ in layers]
        self.targets: list[Tensor] = []
        self._decoder = decoder
        self._prompt, self._tokens = prompt, tokens
        self._pieces: list[list[Tensor]] = [[] for _ in layers]  # rotated keys, [kv_heads, rows, head_dim]
        self._keys: list[Tensor] = []  # all of a layer in float32, once they are asked for

    def projected(self, layer: int, part: "Segment", q: Tensor, k: Tensor, v: Tensor, scale: float) -> None:
        asked = min(part.rows, max(0, self._tokens - part.first))
        asking = min(part.rows, max(0, self._prompt - part.first))
        if asked:
            self.inputs[layer].append(joined(q[:, :asked], k[:, :asked], v[:, :asked]))
            self._pieces[layer].append(self._rotated(layer, part, k, slice(0, asked)))
        if asking < part.rows:
            self._ask(layer, self._rotated(layer, part, q, slice(asking, None)), scale)

    def _ask(self, layer: int, queries: Tensor, scale: float) -> None:
        """Raise the targets of a layer to the logits of some queries, [q_heads, rows, head_dim]."""
        if layer == len(self._keys):
            self._keys.append(torch.cat(self._pieces[layer], 1).float())
            self._pieces[layer].clear()
            self.targets.append(torch.full_like(self._keys[layer][..., 0], float("-inf")))
        keys, targets = self._keys[layer], self.targets[layer]
        grouped = queries.float().unflatten(0, (keys.shape[0], -1))  # [kv_heads, group, rows, head_dim]
        for block in grouped.split(LOGIT_ROWS, 2):
            best = scale * (block.flatten(1, 2) @ keys.mT).amax(1)
            torch.maximum(targets, best, out=targets)

    def _rotated(self, layer: int, part: "Segment", x: Tensor, rows: slice) -> Tensor:
        """Rows of x, [heads, rows, head_dim], rotated at their positions."""
        kind, rotary = self._decoder.rope_kinds[layer], self._decoder.rotary
        if kind is NOT_ROTATED:
            return x[:, rows]
        tables = rotary.tables(part.sequence.frequencies, part.positions[rows])[kind]
        return rotary.rotate(x[None, :, rows], tables)[0]
