"""A linear layer of few rows: the definition."""

from torch import Tensor


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x: [rows, in], weight: [out, in], bias: [out] or None; returns [rows, out] in x's dtype, summed in float32."""
    y = x.float() @ weight.float().T  # [rows, out]
    if bias is not None:
        y = y + bias.float()
    return y.to(x.dtype)
