"""The quantised tensors of GGUF files as packed weights.

What a block's codes stand for is gguf's to say: its `dequantize` gives the values, and the scales and minima too, from
the same blocks with every code overwritten by the one that stands for 1, or for 0. The codes follow from the three.
"""

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from numpy.typing import NDArray

from winnow.kernels.packed import PackedWeight, pack

Fill = dict[tuple[int, int], int]  # bytes [start, stop) of a block, and what to overwrite them with
PIECE = 1 << 22  # values converted at a time


@dataclass(frozen=True)
class Kind:
    """bits, group: of the packed form, which loses nothing but the rounding of scales. size: of a stored block.

    ones: makes every code stand for 1 and every minimum 0. zeros: makes every code stand for 0; empty where there are
    no minima, since all values are 0 then.
    """

    bits: int
    group: int
    size: int
    ones: Fill
    zeros: Fill = field(default_factory=dict)


_T = GGMLQuantizationType
PACKABLE: dict[GGMLQuantizationType, Kind] = {
    _T.Q4_0: Kind(4, 32, 18, {(2, 18): 0x99}),
    _T.Q4_1: Kind(4, 32, 20, {(2, 4): 0, (4, 20): 0x11}, {(4, 20): 0}),
    _T.Q5_0: Kind(8, 32, 22, {(2, 6): 0xFF, (6, 22): 0x11}),
    _T.Q5_1: Kind(8, 32, 24, {(2, 4): 0, (4, 8): 0, (8, 24): 0x11}, {(4, 24): 0}),
    _T.Q8_0: Kind(8, 32, 34, {(2, 34): 1}),
    _T.Q2_K: Kind(4, 16, 84, {(16, 80): 0x55, (82, 84): 0}, {(16, 80): 0}),
    _T.Q3_K: Kind(4, 16, 110, {(0, 32): 0xFF, (32, 96): 0x55}),
    _T.Q4_K: Kind(4, 32, 144, {(2, 4): 0, (16, 144): 0x11}, {(16, 144): 0}),
    _T.Q5_K: Kind(8, 32, 176, {(2, 4): 0, (16, 48): 0, (48, 176): 0x11}, {(16, 176): 0}),
    _T.Q6_K: Kind(8, 16, 210, {(0, 128): 0x11, (128, 192): 0xAA}),
    _T.IQ4_NL: Kind(8, 32, 18, {(2, 18): 0x88}),
    _T.IQ4_XS: Kind(8, 32, 136, {(8, 136): 0x88}),
    _T.TQ2_0: Kind(4, 32, 66, {(0, 64): 0xAA}),
}


@functools.cache
def readable(type: GGMLQuantizationType) -> bool:
    """Whether gguf can say what a tensor of this type stands for."""
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[type][1]), np.uint8), type)
    except NotImplementedError:
        return False
    return True


def packed_tensor(raw: NDArray[np.uint8], type: GGMLQuantizationType) -> PackedWeight | None:
    """A stored tensor [rows, bytes] as a packed weight; None where its type or its scales have no packed form."""
    if (kind := PACKABLE.get(type)) is None:
        return None
    columns = raw.shape[1] // kind.size * GGML_QUANT_SIZES[type][0]
    pieces = []
    for start in range(0, len(raw), step := max(1, PIECE // columns)):
        if (piece := _pack(np.ascontiguousarray(raw[start : start + step]), type, kind)) is None:
            return None
        pieces.append(piece)
    return PackedWeight(torch.cat([p.data for p in pieces]), columns, pieces[0].kind, pieces[0].minima)


def dense_tensor(raw: NDArray[np.uint8], values: NDArray[Any], type: GGMLQuantizationType) -> torch.Tensor:
    """A stored tensor [..., bytes] as floats: as stored, or its values in bfloat16 where the type is quantised."""
    if type == _T.BF16:
        return torch.from_numpy(raw.copy()).view(torch.bfloat16)
    if type in (_T.F32, _T.F16):
        return torch.from_numpy(raw.copy()).view(torch.float32 if type == _T.F32 else torch.float16)
    return torch.from_numpy(values).bfloat16()


def _pack(raw: NDArray[np.uint8], type: GGMLQuantizationType, kind: Kind) -> PackedWeight | None:
    values = _values(type, raw)
    scales = _overwritten(raw, type, kind, kind.ones)
    minima = _overwritten(raw, type, kind, kind.zeros) if kind.zeros else None
    grouped = values.reshape(len(raw), -1, kind.group)
    with np.errstate(all="ignore"):  # a group whose scale is 0 has no codes, one that is NaN is refused by `pack`
        above = grouped if minima is None else grouped - minima[..., None]
        codes = np.nan_to_num(np.rint(above / scales[..., None]))
    least, most = (0, 15) if kind.bits == 4 else (-128, 127)
    signed = kind.bits == 4 and minima is None
    codes = (codes + 8 * signed).clip(least, most).reshape(values.shape)
    return pack(
        torch.from_numpy(codes.astype(np.uint8 if kind.bits == 4 else np.int8)),
        torch.from_numpy(scales.copy()),
        None if minima is None else torch.from_numpy(minima.copy()),
    )


def _overwritten(raw: NDArray[np.uint8], type: GGMLQuantizationType, kind: Kind, fill: Fill) -> NDArray[np.float32]:
    """The first value of every group, once the bytes of every block are overwritten."""
    blocks = raw.reshape(-1, kind.size).copy()
    for (start, stop), byte in fill.items():
        blocks[:, start:stop] = byte
    return _values(type, blocks.reshape(raw.shape))[:, :: kind.group]


def _values(type: GGMLQuantizationType, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    with np.errstate(all="ignore"):  # of scales that are NaN or infinite, which are refused later
        return dequantize(raw, type)
