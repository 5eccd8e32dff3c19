"""nn.Linear at few rows through the Numba kernel, and how the layers of a tree are made to use it."""

import logging

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from winnow.kernels.floats import floats
from winnow.kernels.launch import match_torch_threads, numba_missing, parts_of_work
from winnow.kernels.linear.many import product

log = logging.getLogger(__name__)

MAX_ROWS = 16  # above, matrix products win
LINE_BYTES = 64  # the kernel reads whole cache lines: 32 bfloat16 or 16 float32
DTYPES = (torch.bfloat16, torch.float32)


def available(weight: Tensor) -> str | None:
    """Why the kernel cannot serve a layer with this weight, or None where it can."""
    if weight.device.type != "cpu":
        return f"the weight is on {weight.device}, the kernel is for CPUs"
    if weight.dtype not in DTYPES:
        return f"no kernel for {weight.dtype}"
    if type(weight) not in (nn.Parameter, Tensor) or not weight.is_contiguous():
        return "the weight is not a plain contiguous tensor"
    if weight.shape[1] * weight.itemsize % LINE_BYTES:
        return f"{weight.shape[1]} inputs are not a multiple of {LINE_BYTES // weight.itemsize}"
    return numba_missing()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias for at most `MAX_ROWS` rows, summed in float32; without autograd.

    Args:
        x: [..., in]; weight: [out, in]; bias: [out] or None; one dtype, bfloat16 or float32, on the CPU.
    Raises:
        ValueError: the kernel cannot serve these; `available()` says why.
    """
    if (why := available(weight)) is not None:
        raise ValueError(why)
    rows = x.numel() // x.shape[-1]
    if x.shape[-1] != weight.shape[1] or x.dtype != weight.dtype or not 0 < rows <= MAX_ROWS:
        raise ValueError(f"x {tuple(x.shape)} {x.dtype} does not fit {tuple(weight.shape)} {weight.dtype}")
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != weight.dtype or not bias.is_contiguous()):
        raise ValueError(f"bias {tuple(bias.shape)} {bias.dtype} does not fit {tuple(weight.shape)} {weight.dtype}")
    match_torch_threads()
    return _run(x, weight, bias, rows)


def _run(x: Tensor, weight: Tensor, bias: Tensor | None, rows: int) -> Tensor:
    from winnow.kernels.linear.cpu import linear_kernel

    outs, ins = weight.shape
    half = x.dtype == torch.bfloat16
    padded = rows if rows < 3 else -(-rows // 4) * 4  # as the kernel's tiles have it
    shape = (*x.shape[:-1], outs)
    x = x.contiguous() if padded == rows else F.pad(x.reshape(rows, ins), (0, 0, 0, padded - rows))
    y = x.new_empty(shape if padded == rows else (padded, outs))
    sums = floats(padded, outs) if half and rows > 1 else y
    linear_kernel(
        parts_of_work(), x.data_ptr(), weight.data_ptr(), 0 if bias is None else bias.data_ptr(), y.data_ptr(),
        sums.data_ptr(), padded, outs, ins * x.itemsize, half,
    )  # fmt: skip
    return y if padded == rows else y[:rows].view(shape)


class FastLinear(nn.Linear):
    """nn.Linear whose forward uses the kernel for few rows when nothing needs a gradient; same parameters."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self._parameters.get("weight"), self._parameters.get("bias")
        rows = x.numel() // self.in_features
        if weight is None or torch.is_grad_enabled() or type(x) is not Tensor:
            return F.linear(x, self.weight, self.bias)
        if not 0 < rows <= MAX_ROWS:
            return product(x, weight, bias)
        if x.dtype != weight.dtype or x.dtype not in DTYPES or not weight.is_cpu:  # moved or cast since it was chosen
            return F.linear(x, weight, bias)
        match_torch_threads()
        return _run(x, weight, bias, rows)


def use_fast_linears(tree: nn.Module) -> None:
    """Make the plain linear layers of a module tree `FastLinear`, for good: of one that Winnow drives, never a user's.

    Only modules of exactly the type nn.Linear take part, so quantised and adapter layers are left alone.
    """
    for module in tree.modules():
        if type(module) is nn.Linear and _suits(module):
            object.__setattr__(module, "__class__", FastLinear)


def _suits(module: nn.Linear) -> bool:
    why = available(module.weight)
    if why is None and module.bias is not None and module.bias.dtype != module.weight.dtype:
        why = "weight and bias have different dtypes"
    if why is not None:
        log.debug("linear layer %s stays with torch: %s", tuple(module.weight.shape), why)
    return why is None
