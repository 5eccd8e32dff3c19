"""Signs of keys, and what a query makes of them: the definition."""

import functools
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from winnow.kernels.layers import tables as t
from winnow.kernels.select.reference import top

BLOCK = 16  # units whose signs lie side by side
CHANNELS = 4  # and channels
LEVELS = 127  # to which channels of queries are rounded, on either side of 0
SEED = 7


@dataclass(frozen=True)
class Signs:
    """What is known of the keys of some units, in place of them.

    codes: [kv_heads, blocks, head_dim / 4] int64, of sixteen units a block and four channels each, to a multiple of
    which they are filled up: bit 4 i + j is that of unit i and channel j, set where it is not negative. lengths:
    [kv_heads, 16 blocks] bfloat16. centre: [kv_heads, head_dim] float32. skipped: how many units of the first block are
    not asked for; units: how many are, those behind them.
    """

    codes: Tensor
    lengths: Tensor
    centre: Tensor
    skipped: int
    units: int

    @cached_property
    def facts(self) -> np.ndarray:
        """What the layers' kernel is told of them, [kv_heads, CHOICE], but for how many it is to choose."""
        told = np.zeros((len(self.centre), t.CHOICE), dtype=np.int64)
        for place, each in ((t.CODES, self.codes), (t.LENGTHS, self.lengths), (t.CENTRE, self.centre)):
            told[:, place] = each.data_ptr() + each.stride(0) * each.itemsize * np.arange(len(told))
        told[:, t.ASKED], told[:, t.SKIPPED] = self.units, self.skipped
        told[:, t.TURN] = rotation(self.centre.shape[1], self.centre.device).data_ptr()
        return told


@functools.cache
def rotation(head_dim: int, device: torch.device) -> Tensor:
    """A rotation of so many channels, [head_dim, head_dim] float32: y = x @ rotation. Drawn once and for all."""
    drawn = torch.randn(head_dim, head_dim, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64)
    return torch.linalg.qr(drawn).Q.float().contiguous().to(device)


def signs_of(keys: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """Of keys [kv_heads, units, head_dim]: whether a channel of y is not negative, likewise; t, [kv_heads, units]."""
    y = (keys.float() - centre[:, None]) @ rotation(keys.shape[2], keys.device)
    total = y.abs().sum(2)
    lengths = torch.where(total > 0, y.square().sum(2) / total, 0.0)
    return y >= 0, lengths.to(torch.bfloat16)


def pack(bits: Tensor, lead: int) -> Tensor:
    """Codes [kv_heads, blocks, head_dim / 4] int64 of bits [kv_heads, units, head_dim], the first being unit `lead`."""
    whole = pad(bits, (0, -bits.shape[2] % CHANNELS, lead, -(lead + bits.shape[1]) % BLOCK)).contiguous()
    four = whole.view(torch.int32)  # a byte for every channel, 0 or 1: three of them slide up to the lowest
    nibbles = (four | four >> 7 | four >> 14 | four >> 21) & 15
    places = CHANNELS * torch.arange(BLOCK, device=bits.device)[:, None]
    return (nibbles.unflatten(1, (-1, BLOCK)).long() << places).sum(2)


def _places(device: torch.device) -> Tensor:
    """Of the bits of sixteen units and four channels."""
    return torch.arange(BLOCK * CHANNELS, device=device).view(BLOCK, CHANNELS)


def estimates(query: Tensor, signs: Signs) -> Tensor:
    """Of the products of queries [q_heads, head_dim] with keys: [kv_heads, group, units] float32."""
    kv_heads, head_dim = signs.centre.shape
    fours = (signs.codes[..., None, None] >> _places(query.device)) & 1
    bits = fours.transpose(2, 3).flatten(3).flatten(1, 2)[:, signs.skipped :][:, : signs.units, :head_dim]
    lengths = signs.lengths[:, signs.skipped :][:, : signs.units].float()
    grouped = query.float().unflatten(0, (kv_heads, -1))
    asked = grouped @ rotation(head_dim, query.device)
    step = asked.abs().amax(-1, keepdim=True) / LEVELS
    levels = torch.where(step > 0, asked / step, 0.0).round()
    matched = step * (levels @ (2.0 * bits.float() - 1.0).mT)
    return grouped @ signs.centre[..., None] + lengths[:, None] * matched


def best_units_reference(query: Tensor, signs: Signs, count: int) -> Tensor:
    """The arguments and result of `best_units()`."""
    return top(estimates(query, signs).amax(1), count)
