"""A decoder layer as facts read from its modules, in the form that the kernel of few rows takes.

`KNOWN` says how each family calls the parts of its layers. A layer that is not what it says, or that has anything
hooked to it, has no description, and is driven.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from winnow.kernels.layers import tables as t
from winnow.kernels.linear import FastLinear
from winnow.models.packed import PackedLinear
from winnow.policies.base import ModelShape


@dataclass(frozen=True, kw_only=True)
class Names:
    """How the layers of a family call their parts; "" for what they have not.

    norms: before attention, after it, before the MLP, after it. norm: what they do, one of the table's kinds; eps:
    of a norm. qkv, gate_up: one name where one weight has the rows of all. softcap: of attention logits; residual: what
    attention's and the MLP's outputs are multiplied by.
    """

    norms: tuple[str, str, str, str] = ("input_layernorm", "", "post_attention_layernorm", "")
    norm: int = t.QUOTIENT_ROUNDED
    eps: str = "variance_epsilon"
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    activation: str = "act_fn"
    softcap: str = ""
    residual: str = ""


FOUR_NORMS = (
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
)  # fmt: skip
KNOWN = {  # by what the names of their classes begin with
    "Llama": Names(),
    "Mistral": Names(),
    "Qwen2": Names(),
    "Qwen3": Names(),
    "SmolLM3": Names(),
    "Phi3": Names(qkv=("qkv_proj",), gate_up=("gate_up_proj",), activation="activation_fn"),
    "Gemma2": Names(norms=FOUR_NORMS, norm=t.FROM_ONE, eps="eps", softcap="attn_logit_softcapping"),
    "Gemma3": Names(norms=FOUR_NORMS, norm=t.FROM_ONE, eps="eps"),
    "Olmo2": Names(
        norms=("", "post_attention_layernorm", "", "post_feedforward_layernorm"), norm=t.PRODUCT_ROUNDED
    ),
    "Granite": Names(residual="residual_multiplier"),
}  # fmt: skip


class Rows(NamedTuple):
    """Some rows of the weight [outs, ins] of a linear layer."""

    module: Any
    start: int
    stop: int
    outs: int
    ins: int


class UnknownError(Exception):
    """A layer that no description holds for; why."""


def describe(layer: Any, shape: ModelShape, dtype: torch.dtype, rope: torch.dtype) -> list[int]:
    """A layer whose activations are `dtype`, its cos and sin `rope`, as a row of the table; raises UnknownError."""
    if any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in layer.modules()):
        raise UnknownError("something is hooked to it")
    name = type(layer).__name__.removesuffix("DecoderLayer")
    if (names := KNOWN.get(name)) is None:
        raise UnknownError(f"{type(layer).__name__} is not known")
    layer = _typed(layer, f"{name}DecoderLayer")
    attention, mlp = _typed(layer.self_attn, f"{name}Attention"), _typed(layer.mlp, f"{name}MLP")
    queries, keys = (heads * shape.head_dim for heads in (shape.q_heads, shape.kv_heads))
    parts = [
        *_parts(attention, names.qkv, (queries, keys, keys), shape.hidden),
        *_parts(attention, ("o_proj",), (shape.hidden,), queries),
        *_parts(mlp, names.gate_up, (shape.mlp, shape.mlp), shape.hidden),
        *_parts(mlp, ("down_proj",), (shape.hidden,), shape.mlp),
    ]
    record = [0] * t.LAYER
    _put_norms(record, layer, name, shape, dtype)
    record[t.ROPE_HALF] = int(rope == torch.bfloat16)
    record[t.SCALE] = _bits(_fact(attention, "scaling"))
    record[t.SOFTCAP] = _bits(_fact(attention, names.softcap) or 0.0) if names.softcap else 0
    record[t.ACTIVATION] = _activation(_fact(mlp, names.activation))
    record[t.SHARE] = _bits(_fact(layer, names.residual) if names.residual else 1.0)
    record[t.PARTS :] = [place for part in parts for place in _product(part, dtype)]
    return record


def _put_norms(record: list[int], layer: Any, name: str, shape: ModelShape, dtype: torch.dtype) -> None:
    """Fill in the places of a layer's norms."""
    names = KNOWN[name]
    around = [_fact(layer, each) if each else None for each in names.norms]
    heads = [getattr(layer.self_attn, each, None) for each in ("q_norm", "k_norm")]
    norms = [_typed(norm, f"{name}RMSNorm") for norm in (*around, *heads) if norm is not None]
    eps = {_fact(norm, names.eps) for norm in norms}
    if len(eps) > 1 or (heads[0] is None) != (heads[1] is None):
        raise UnknownError("its norms differ")
    record[t.NORM_KIND], record[t.EPS] = names.norm, _bits(eps.pop())
    widths = [shape.head_dim] * 2
    if heads[0] is not None and heads[0].weight.numel() > shape.head_dim:
        record[t.ALL_HEADS] = 1
        widths = [shape.q_heads * shape.head_dim, shape.kv_heads * shape.head_dim]
    for place, (norm, width) in enumerate(zip((*around, *heads), [shape.hidden] * 4 + widths, strict=True)):
        record[place] = 0 if norm is None else _norm(norm, width, dtype)


def _fact(module: Any, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        raise UnknownError(f"{type(module).__name__} has no {name}") from None


def _typed(module: nn.Module, name: str) -> Any:
    """The module, if it is of the class of that name that transformers has."""
    if type(module).__name__ != name or not type(module).__module__.startswith("transformers."):
        raise UnknownError(f"{type(module).__name__} stands where {name} was expected")
    return module


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.int32))


def _norm(norm: Any, width: int, dtype: torch.dtype) -> int:
    """The address of a norm's weight."""
    if norm.weight.dtype != dtype or norm.weight.shape != (width,) or not norm.weight.is_contiguous():
        raise UnknownError(f"a norm of {tuple(norm.weight.shape)} {norm.weight.dtype} where {width} were expected")
    return int(norm.weight.data_ptr())


def _activation(module: Any) -> int:
    if type(module).__name__ in ("SiLU", "SiLUActivation"):
        return t.SILU
    if type(module).__name__ == "GELUTanh" and isinstance(module.act, functools.partial):  # else step by step
        return t.GELU
    raise UnknownError(f"the activation {type(module).__name__} is not known")


def _parts(owner: Any, names: Sequence[str], sizes: Sequence[int], ins: int) -> list[Rows]:
    """Weights with these counts of outputs: one each, or one with the rows of all."""
    modules = [_fact(owner, name) for name in names]
    if len(modules) == len(sizes):
        return [Rows(module, 0, size, size, ins) for module, size in zip(modules, sizes, strict=True)]
    ends = accumulate(sizes)
    return [Rows(modules[0], end - size, end, sum(sizes), ins) for end, size in zip(ends, sizes, strict=True)]


def _adapter(module: Any, start: int, dtype: torch.dtype) -> list[int]:
    """The places of what an adapter adds to the outputs of a layer from one on."""
    if (pair := getattr(module, "low_rank", None)) is None:
        return [0, 0, 0, 0]
    down, up = pair
    if down.dtype != dtype or len(down) > module.in_features:
        raise UnknownError(f"an adapter of rank {len(down)} in {down.dtype}")
    return [len(down), down.data_ptr(), up[:, start:].data_ptr(), up.stride(0) * dtype.itemsize]


def _product(part: Rows, dtype: torch.dtype) -> list[int]:
    """The places of a product in the record of its layer."""
    module, start, stop, outs, ins = part
    bias = getattr(module, "bias", None)
    if bias is not None and (bias.dtype != dtype or not bias.is_contiguous()):
        raise UnknownError(f"a bias of {bias.dtype}")
    place = 0 if bias is None else bias.data_ptr() + start * dtype.itemsize
    added = _adapter(module, start, dtype)
    if type(module) is PackedLinear and module.few and module.packed.shape == (outs, ins):
        weight = module.packed[start:stop]
        if weight.data.untyped_storage().data_ptr() != module.packed.data.untyped_storage().data_ptr():
            raise UnknownError(f"rows {start} to {stop} of a weight in tiles, which would have to be copied")
        return [*weight.facts, weight.kind, int(weight.minima), place, *added]
    if type(module) is FastLinear and module.weight.dtype == dtype and module.weight.shape == (outs, ins):
        row_bytes = ins * dtype.itemsize
        data = module.weight.data_ptr() + start * row_bytes
        return [data, row_bytes, stop - start, ins, 1, t.DENSE, 0, place, *added]
    raise UnknownError(f"the kernel cannot serve {module}")
