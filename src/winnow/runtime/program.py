"""Layers as a flat list of operations over the modules' own weights, for decode steps: what the kernel is told of them.

Driving the modules is the definition. A layer whose modules are what this file knows, with nothing hooked to them, is
taken together with its neighbours in one call, where what its rows read is known beforehand (`frame.py`).
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from winnow.kernels.launch import numba_missing
from winnow.kernels.layers import tables as t
from winnow.kernels.linear import MAX_ROWS, FastLinear
from winnow.models.packed import PackedLinear
from winnow.runtime.decoder import NOT_ROTATED, Decoder
from winnow.runtime.frame import Frame, padded
from winnow.runtime.segment import Segment

KNOWN = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer")
PRODUCTS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")  # in the order of the tables
LANES = 16  # what the kernel takes at once of a row
MOST_ROWS = 16


class Program:
    """The layers of a decoder that can be taken together: numbers and addresses, in the form that the kernel takes.

    rows: up to how many rows they can; 0: no layer can. shape, eps, scale, mlp: of every layer. rotated: per layer.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.shape, self.device, self.dtype = decoder.shape, decoder.device, decoder.dtype
        self.rotated = [kind is not NOT_ROTATED for kind in decoder.rope_kinds]
        self.rope_kinds, self.rotary = decoder.rope_kinds, decoder.rotary
        self._memory: dict[str, Tensor] = {}
        # Held, since what is gone would be read all the same: only addresses of it are known.
        self._weights = [parameter.data for parameter in decoder.tree.parameters()]
        records: list[list[int] | None] = [None] * len(decoder.layers)
        if _possible(decoder):
            first = decoder.layers[0]
            self.eps, self.scale = first.input_layernorm.variance_epsilon, first.self_attn.scaling
            self.mlp = first.mlp.gate_proj.out_features
            facts = _facts(first)
            records = [_described(layer, decoder.dtype) if _facts(layer) == facts else None for layer in decoder.layers]
        self._until = [len(records)] * (len(records) + 1)  # per layer: up to which one from there on all are taken
        for layer in reversed(range(len(records))):
            self._until[layer] = layer if records[layer] is None else self._until[layer + 1]
        self.layers = np.array([record or [0] * t.LAYER for record in records], dtype=np.int64)
        taken = [layer for layer, record in zip(decoder.layers, records, strict=True) if record is not None]
        self.rows = min((_few(module) for layer in taken for module in _products(layer)), default=0)
        self.rows = min(self.rows, MOST_ROWS)

    def run(self, segments: list[Segment], hidden: Tensor, first: int, last: int) -> tuple[Tensor, int]:
        """Take the decode rows of some segments, [rows, hidden], through the layers from `first` on, up to `last`.

        Returns them and the layer that they are about to enter: `first` where that one has to be driven.
        """
        if len(hidden) > self.rows:
            return hidden, first
        # Tokens are ranked by the last of the layers that are taken.
        last = min([last, *(at + 1 for segment in segments for at in segment.ranked_in if at >= first)])
        frame, layer = Frame(self, segments, first), first
        while layer < (stop := min(last, self._until[layer])) and (taken := frame.add(layer, stop)):
            layer += taken
        if layer == first:
            return hidden, first
        hidden = frame.run(hidden)
        for segment in segments:
            if layer - 1 in segment.ranked_in:
                segment.signals.append(frame.rank(segment))
        return hidden, layer

    def queries(self, row: int, live: int) -> Tensor:
        """[q_heads, head_dim] of one of `live` rows that have just been taken, in the last layer, as they attended."""
        shape, rows = self.shape, padded(live)
        heads = shape.q_heads + 2 * shape.kv_heads
        start = rows * shape.hidden + row * heads * shape.head_dim
        known = self._memory["buffer"].view(self.dtype)[start : start + shape.q_heads * shape.head_dim]
        return known.view(shape.q_heads, shape.head_dim)

    def memory(self, name: str, nbytes: int) -> int:
        """The address of memory that is kept from call to call."""
        if name not in self._memory or self._memory[name].numel() < nbytes:
            self._memory[name] = torch.empty(nbytes, dtype=torch.uint8)
        return self._memory[name].data_ptr()


def _possible(decoder: Decoder) -> bool:
    """Whether the kernel can serve this model at all."""
    layer, shape = decoder.layers[0], decoder.shape
    return (
        decoder.device.type == "cpu"
        and decoder.dtype in (torch.bfloat16, torch.float32)
        and numba_missing() is None
        and type(layer).__name__ in KNOWN
        and decoder.config.hidden_act == "silu"
        and shape.head_dim % 32 == 0
        and shape.head_dim <= 256
        and decoder.rotary.identity()[0].shape[-1] == shape.head_dim
        and shape.hidden % LANES == 0
        and layer.mlp.gate_proj.out_features % LANES == 0
    )


def _facts(layer: Any) -> tuple[Any, ...]:
    """What has to be the same in all layers that are taken together."""
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    norms += [norm for name in ("q_norm", "k_norm") if (norm := getattr(layer.self_attn, name, None)) is not None]
    eps = {norm.variance_epsilon for norm in norms}
    widths = [(getattr(each, "out_features", 0), getattr(each, "in_features", 0)) for each in _products(layer)]
    return type(layer), type(layer.mlp.act_fn), layer.self_attn.scaling, eps, widths


def _described(layer: Any, dtype: torch.dtype) -> list[int] | None:
    """The record of a layer, or None where a module is not what it should be or something is hooked to one."""
    if any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in layer.modules()):
        return None
    attention = layer.self_attn
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    norms += [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    if any(norm is not None and norm.weight.dtype != dtype for norm in norms):
        return None
    record = [0 if norm is None else norm.weight.data_ptr() for norm in norms]
    for module in _products(layer):
        if (product := _product(module, dtype)) is None:
            return None
        record += product
    return record


def _products(layer: Any) -> list[nn.Module]:
    return [getattr(layer.self_attn if name[0] in "qkvo" else layer.mlp, name) for name in PRODUCTS]


def _product(module: Any, dtype: torch.dtype) -> list[int] | None:
    """The record of a linear layer, or None where the kernel cannot serve it."""
    bias = getattr(module, "bias", None)
    if bias is not None and (bias.dtype != dtype or not bias.is_contiguous()):
        return None
    place = 0 if bias is None else bias.data_ptr()
    if type(module) is PackedLinear and not module.low_rank and module.few:
        weight = module.packed
        data, row_bytes, outs, columns, group = weight.facts
        return [data, row_bytes, outs, columns, group, weight.kind, int(weight.minima), place]
    if type(module) is FastLinear and module.weight.dtype == dtype:
        outs, columns = module.weight.shape
        return [module.weight.data_ptr(), columns * dtype.itemsize, outs, columns, 1, t.DENSE, 0, place]
    return None


def _few(module: nn.Module) -> int:
    """Up to how many rows a product is multiplied as it is."""
    return module.few if isinstance(module, PackedLinear) else MAX_ROWS
