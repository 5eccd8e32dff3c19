"""The logits of one row: how every query head of a token matches the units of a layer, before any softmax.

Fused attention does not give its weights away; a policy that ranks tokens by them needs this one row of the map.
"""

from torch import Tensor

from winnow.kernels.attend import kernel_for
from winnow.kernels.dots.reference import dots_reference

__all__ = ["dots", "dots_reference"]


def dots(q: Tensor, k: Tensor) -> Tensor:
    """q: [q_heads, head_dim]; k: [kv_heads, units, head_dim], each head's units contiguous. [q_heads, units] float32.

    Head h of q belongs to KV head h * kv_heads // q_heads.
    """
    if kernel_for(q.device.type, q.dtype, len(q) // len(k), q.shape[1], plain=False) == "decode":
        from winnow.kernels.dots.cpu import dots_cpu

        return dots_cpu(q, k)
    return dots_reference(q, k)
