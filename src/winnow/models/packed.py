"""Modules whose weights stay packed, in the place of a model's linear layers and embedding.

They compute what the stock modules would with the floats that the packed weights stand for, so the tree around them is
transformers' own and runs by itself, too. They have no gradients.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from winnow.errors import ModelError
from winnow.kernels.linear import product
from winnow.kernels.packed import PackedWeight, expand, few_of, linear, quantize, rows_of, tiles_bytes

ROWS, GROUP = 4, 32  # a weight is rounded to packed if it has at least these rows; columns that share a scale


class _Packed(nn.Module):
    """Holds a packed weight as plain data: no parameter, since it has no gradient, and no part of a state dict."""

    packed: PackedWeight

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        if (moved := fn(self.packed.data)) is not self.packed.data:
            self.packed = replace(self.packed, data=moved)
        return self


class PackedLinear(_Packed):
    """`nn.Linear` over a packed weight.

    few: up to how many rows of `dtype` the weight is multiplied as it is; above it is expanded. low_rank: what adapters
    add, down [rank, in] and up [rank, out].
    """

    def __init__(self, packed: PackedWeight, dtype: torch.dtype, bias: Tensor | None = None) -> None:
        super().__init__()
        self.packed, self.dtype = packed, dtype
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.out_features, self.in_features = packed.shape
        self.few = few_of(packed, dtype)
        self.low_rank: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            raise ModelError("packed weights have no gradients; load the model with weights='dense' to train it")
        y = linear(x, self.packed, self.bias, self.few)
        if self.low_rank is None:
            return y
        down, up = self.low_rank
        return y + product(product(x, down), up.T)

    def adapt(self, down: Tensor, up: Tensor) -> None:
        """Add up (down x) from now on: of an adapter, down [rank, in] and up [out, rank], in the dtype of x."""
        down, up = down.contiguous(), up.T.contiguous()
        if self.low_rank is not None:
            down, up = (torch.cat(both) for both in zip(self.low_rank, (down, up), strict=True))
        self.low_rank = down, up

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        if self.low_rank is not None:
            down, up = self.low_rank
            self.low_rank = fn(down), fn(up)
        self.few = few_of(self.packed, self.dtype)  # on another device there may be no kernel
        return self

    def rows(self, start: int, stop: int | None) -> "PackedLinear":
        """Some outputs of the layer, sharing its memory."""
        part = PackedLinear(self.packed[start:stop], self.dtype, None if self.bias is None else self.bias[start:stop])
        if self.low_rank is not None:
            down, up = self.low_rank
            part.low_rank = down, up[:, start:stop]
        return part

    def dense(self, dtype: torch.dtype) -> nn.Linear:
        """The same layer with its weight as floats, adapters added."""
        weight = expand(self.packed, dtype)
        if self.low_rank is not None:
            down, up = self.low_rank
            weight = (weight.float() + up.float().T @ down.float()).to(dtype)
        layer = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        layer.weight = nn.Parameter(weight, requires_grad=False)
        layer.register_parameter("bias", self.bias)
        return layer

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bits={self.packed.bits}"


class PackedEmbedding(_Packed):
    """`nn.Embedding` over a packed weight. scale: what some families multiply their embeddings by."""

    def __init__(self, packed: PackedWeight, dtype: torch.dtype, scale: float | None = None) -> None:
        super().__init__()
        self.packed, self.scale = packed, scale
        self.num_embeddings, self.embedding_dim = packed.shape
        # The dtype of what comes out follows the model's when it is cast.
        self.register_buffer("like", torch.empty(0, dtype=dtype), persistent=False)
        self.like: Tensor

    def forward(self, ids: Tensor) -> Tensor:
        rows = rows_of(self.packed, ids, self.like.dtype)
        return rows if self.scale is None else rows * torch.tensor(self.scale, dtype=rows.dtype, device=rows.device)


def packed_modules(model: nn.Module) -> Iterator[tuple[str, PackedLinear | PackedEmbedding]]:
    """Every packed module by name, also those that share a weight."""
    for name, module in model.named_modules():
        if isinstance(module, PackedLinear | PackedEmbedding):
            yield name, module


def is_packed(model: nn.Module) -> bool:
    return next(packed_modules(model), None) is not None


def named_weights(model: nn.Module) -> Iterator[tuple[str, Tensor | PackedWeight]]:
    """Every weight once, by the name that it has, or would have as floats, in the model's parameters."""
    yield from model.named_parameters()
    seen: set[int] = set()
    for name, module in packed_modules(model):
        if (place := module.packed.data.data_ptr()) not in seen:
            seen.add(place)
            yield f"{name}.weight", module.packed


def put_packed(model: PreTrainedModel, name: str, packed: PackedWeight, dtype: torch.dtype) -> None:
    """Replace the linear layer or embedding `name` by one over `packed`; a linear layer keeps its bias."""
    parent, _, last = name.rpartition(".")
    module: Any = model.get_submodule(name)
    if isinstance(module, nn.Embedding):
        made: nn.Module = PackedEmbedding(packed, dtype, getattr(module, "scalar_embed_scale", None))
    else:
        made = PackedLinear(packed, dtype, None if module.bias is None else module.bias.detach().to(dtype))
    setattr(model.get_submodule(parent), last, made.train(module.training))


def packable(module: nn.Module) -> bool:
    """Whether a module of a model may be replaced by a packed one: nothing but a linear layer or an embedding."""
    if isinstance(module, nn.Embedding):
        return type(module) is nn.Embedding or hasattr(module, "scalar_embed_scale")
    return type(module) is nn.Linear


def rounded_sizes(model: nn.Module, ends: Collection[nn.Module | None]) -> dict[str, int]:
    """The bytes of every weight that `quantize_model` rounds, by its name in the parameters of `model`, whose weights
    need not be there. ends: its embedding and its head."""
    names = {id(weight): name for name, weight in model.named_parameters()}
    found: dict[str, int] = {}
    for module in filter(packable, model.modules()):
        weight: Any = module.weight
        rows, columns = weight.shape
        if rows >= ROWS and columns % GROUP == 0:
            bits = 8 if any(module is end for end in ends) else 4
            found.setdefault(names[id(weight)], tiles_bytes(rows, columns, bits, GROUP, minima=bits == 4))
    return found


def quantize_model(model: PreTrainedModel) -> int:
    """Round the linear layers of `model`, in place, to 4 bits, its embedding and head to 8, in groups of 32.

    Layers whose columns are no multiple of 32 stay as they are. Returns how many weights were rounded.
    """
    known: dict[int, PackedWeight | None] = {}
    ends = {id(module) for module in (model.get_input_embeddings(), model.get_output_embeddings())}
    found = [(name, module) for name, module in model.named_modules() if packable(module)]
    for name, module in found:
        weight: Any = module.weight
        if id(weight) not in known:
            rounded = quantize(weight, 8 if id(module) in ends else 4) if len(weight) >= ROWS else None
            known[id(weight)] = None if rounded is None else rounded.in_tiles()
        if (packed := known[id(weight)]) is not None:
            put_packed(model, name, packed, weight.dtype)
    return sum(packed is not None for packed in known.values())
