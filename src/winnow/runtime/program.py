"""Layers as a flat list of operations over the modules' own weights, for decode steps: what the kernel is told of them.

Driving the modules is the definition. A layer that has a description (`description.py`) is taken together with its
neighbours in one call, where what its rows read is known beforehand (`frame.py`), else by itself, around its attention.
"""

import logging
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from winnow.cache.mapped import at_once
from winnow.kernels.attend import LARGEST_HEAD
from winnow.kernels.launch import numba_missing
from winnow.kernels.layers import tables as t
from winnow.runtime.decoder import Decoder
from winnow.runtime.description import UnknownError, describe
from winnow.runtime.few import FewRows
from winnow.runtime.frame import Frame
from winnow.runtime.segment import Segment
from winnow.runtime.shape import NOT_ROTATED

log = logging.getLogger(__name__)
LANES = 16  # what the kernel takes at once of a row
MOST_ROWS = 32  # that are taken: products of more are faster otherwise, by as much as driving modules takes


class Program:
    """The layers of a decoder that can be taken together: numbers and addresses, in the form that the kernel takes.

    rows: up to how many rows they can; 0: no layer can. shape: of every layer. rotated: per layer.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.shape, self.device = decoder.shape, decoder.device
        self.rotated = [kind is not NOT_ROTATED for kind in decoder.rope_kinds]
        self.rope_kinds, self.rotary = decoder.rope_kinds, decoder.rotary
        self.order = np.arange(MOST_ROWS)  # of rows
        self._memory: dict[str, Tensor] = {}
        # Held, since what is gone would be read all the same: only addresses of it are known.
        self._weights = [parameter.data for parameter in decoder.tree.parameters()]
        known = _descriptions(decoder)
        self._until = [len(known)] * (len(known) + 1)  # per layer: up to which one from there on all are taken
        for layer in reversed(range(len(known))):
            self._until[layer] = layer if known[layer] is None else self._until[layer + 1]
        self.layers = np.array([each or [0] * t.LAYER for each in known], dtype=np.int64)
        self.rows = MOST_ROWS if any(known) else 0

    def run(self, segments: list[Segment], hidden: Tensor, first: int, last: int) -> tuple[Tensor, int]:
        """Take the decode rows of some segments, [rows, hidden], through the layers from `first` on, up to `last`.

        Returns them and the layer that they are about to enter: `first` where what rows read there is not known.
        """
        if len(hidden) > self.rows:
            return hidden, first
        # Tokens are ranked by the last of the layers that are taken.
        last = min([last, *(at + 1 for segment in segments for at in segment.ranked_in if at >= first)])
        if in_files := [each.sequence for each in segments if each.sequence.plan.store.in_files]:
            last = first + at_once([[sequence.caches[at] for sequence in in_files] for at in range(first, last)])
        frame, layer = Frame(self, segments, first), first
        while layer < (stop := min(last, self._until[layer])) and (taken := frame.add(layer, stop)):
            layer += taken
            if frame.ends:
                break
        if layer == first:
            return hidden, first
        if in_files:
            frame.fetch()
        hidden = frame.run(hidden)
        frame.tell()
        for segment in segments:
            if layer - 1 in segment.ranked_in:
                segment.signals[layer - 1] = frame.rank(segment)
        return hidden, layer

    def around(self, layer: int, hidden: Tensor, attend: Callable[..., Tensor]) -> Tensor:
        """[rows, hidden] through one layer, all but its attention taken.

        attend: q, k, v [1, heads, rows, head_dim], unrotated, scaling=..., softcap=... -> [1, rows, q_heads, head_dim].
        """
        rows, (scale, softcap) = FewRows(self, hidden), self.logit_facts(layer)
        rows.take(layer, 1, t.BEFORE)
        q, k, v = (each.transpose(0, 1)[None] for each in rows.projections)
        rows.attended.copy_(attend(q, k, v, scaling=scale, softcap=softcap)[0])
        rows.take(layer, 1, t.AFTER)
        return rows.hidden

    def takes(self, layer: int, rows: int) -> bool:
        """Whether a layer can be taken with so many rows."""
        return rows <= self.rows and self._until[layer] > layer

    def logit_facts(self, layer: int) -> tuple[float, float | None]:
        """By what the logits of a layer are multiplied, and their soft cap."""
        scale, softcap = self.layers[layer, [t.SCALE, t.SOFTCAP]].astype(np.int32).view(np.float32).tolist()
        return scale, softcap or None

    def memory(self, name: str, nbytes: int) -> int:
        """The address of memory that is kept from call to call."""
        if name not in self._memory or self._memory[name].numel() < nbytes:
            self._memory[name] = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        return self._memory[name].data_ptr()


def _descriptions(decoder: Decoder) -> list[list[int] | None]:
    """Of every layer its row of the table; None where it has to be driven."""
    cos, _ = decoder.rotary.identity()
    if not _possible(decoder, cos.shape[-1]):
        return [None] * len(decoder.layers)
    found: list[list[int] | None] = []
    for index, layer in enumerate(decoder.layers):
        try:
            found.append(describe(layer, decoder.shape, decoder.dtype, cos.dtype))
        except UnknownError as error:
            log.debug("layer %d is driven: %s", index, error)
            found.append(None)
    return found


def _possible(decoder: Decoder, rotated: int) -> bool:
    """Whether the kernel can serve this model at all. rotated: how many values of a head are."""
    shape = decoder.shape
    return (
        decoder.device.type == "cpu"
        and decoder.dtype in (torch.bfloat16, torch.float32)
        and numba_missing() is None
        and shape.head_dim % 32 == 0
        and shape.head_dim <= LARGEST_HEAD
        and rotated == shape.head_dim
        and shape.hidden % LANES == 0
        and shape.mlp % LANES == 0
    )
