"""Products of many rows: torch's, in the dtype that it multiplies fastest here."""

import functools
import platform
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

PIECE = 1 << 22  # values of a weight that are made floats at a time: 8 MiB of bfloat16, which all layers share
X86 = ("x86_64", "AMD64")
TILE = 16  # rows of a weight that pieces are whole multiples of, as packed weights have them


@functools.cache
def multiplied_in(dtype: torch.dtype, device: str = "cpu") -> torch.dtype:
    """The dtype in which products of `dtype` are taken: float32 for bfloat16 on a CPU without instructions for it.

    Without them its products take longer than the same in float32, also where oneDNN does have them: with AVX-512 alone
    it converts as it goes.
    """
    if device != "cpu" or dtype != torch.bfloat16:
        return dtype
    # The operator is there only where torch was built with oneDNN.
    has_own = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    converts = platform.machine() in X86 and not torch.cpu._is_avx512_bf16_supported()
    return dtype if has_own and not converts else torch.float32


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias in their dtype, [..., in] -> [..., out]; without autograd where it is taken in another."""
    if multiplied_in(x.dtype, x.device.type) == x.dtype or x.dtype != weight.dtype:
        return F.linear(x, weight, bias)
    return by_pieces(x, weight.shape, lambda piece, kind: weight[piece].to(kind), bias)


def by_pieces(
    x: Tensor, shape: tuple[int, ...], floats: Callable[[slice, torch.dtype], Tensor], bias: Tensor | None
) -> Tensor:
    """x @ weight.T + bias in x's dtype, for a weight [out, in]. floats: makes some of its rows, in a dtype."""
    kind = multiplied_in(x.dtype, x.device.type)
    y, wide, shift = x.new_empty(*x.shape[:-1], shape[0]), x.to(kind), None if bias is None else bias.to(kind)
    step = max(1, PIECE // shape[1] // TILE) * TILE
    for start in range(0, shape[0], step):
        piece = slice(start, start + step)
        y[..., piece] = F.linear(wide, floats(piece, kind), None if shift is None else shift[piece])
    return y
