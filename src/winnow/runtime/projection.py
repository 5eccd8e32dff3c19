"""Units from hidden states of an earlier layer: what rows leave above the layer at which they stop.

The key and value projections are the model's own modules, called on their own; that they give what the layer itself
would is tested for every family.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from winnow.errors import UnsupportedModelError
from winnow.models.packed import PackedLinear
from winnow.policies.compute.gates import Gate, Projection
from winnow.runtime.decoder import Decoder
from winnow.runtime.segment import Segment
from winnow.runtime.shape import NOT_ROTATED


@dataclass(frozen=True)
class Heads:
    """The modules between a layer's input and its units; norm and key_norm may be missing."""

    norm: Any
    keys: Any
    values: Any
    key_norm: Any
    head_dim: int

    def units(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[rows, hidden] -> keys, not rotated, and values [kv_heads, rows, head_dim]."""
        normed = hidden[None] if self.norm is None else self.norm(hidden[None])
        keys, values = self.keys(normed)[0], self.values(normed)[0]
        per_head = self.key_norm is not None and self.key_norm.weight.shape[0] == self.head_dim
        if self.key_norm is not None and not per_head:
            keys = self.key_norm(keys)
        keys, values = (each.unflatten(-1, (-1, self.head_dim)).transpose(0, 1) for each in (keys, values))
        return (self.key_norm(keys) if self.key_norm is not None and per_head else keys), values


def leave_units(decoder: Decoder, gate: Gate, segment: Segment, hidden: Tensor, stops: Tensor | None = None) -> None:
    """Append, in the layers above, units of rows that come to a gate. hidden: [rows, hidden]; stops: [rows] bool."""
    sequence = segment.sequence
    for layer, projection in gate.fills.items():
        if projection.holder != layer or (stops is None and not projection.all_rows):
            continue
        which = slice(None) if projection.all_rows or stops is None else stops
        rows, positions = hidden[which], segment.positions[which]
        if not len(rows):
            continue
        keys, values = heads_of(decoder, projection).units(rows)
        kind = decoder.rope_kinds[layer]
        if kind is not NOT_ROTATED:
            tables = decoder.rotary.tables(sequence.frequencies, positions)[kind]
            keys = decoder.rotary.rotate(keys[None], tables)[0]
        first = int(positions[0])
        cache = sequence.caches[layer]
        cache.append(keys, values, positions, first if int(positions[-1]) - first + 1 == len(rows) else None)
        if stops is not None and stops.all():  # otherwise the rows that go on need what would be evicted
            sequence.leave(layer)


def heads_of(decoder: Decoder, projection: Projection) -> Heads:
    """The modules of a projection; those of several teachers are averaged, and stay for as many groups of teachers as
    one plan can have."""
    norm = getattr(decoder.layers[projection.norm], "input_layernorm", None)
    teachers = [_parts(decoder, layer) for layer in projection.teachers]
    if len(teachers) == 1:
        return Heads(norm, *teachers[0], decoder.shape.head_dim)
    means = decoder.derived.setdefault("means", {})
    if projection.teachers not in means:
        if len(means) >= decoder.shape.layers // 2:
            del means[next(iter(means))]
        means[projection.teachers] = tuple(_mean(parts, decoder.dtype) for parts in zip(*teachers, strict=True))
    keys, values, key_norm = means[projection.teachers]
    return Heads(norm, keys, values, key_norm, decoder.shape.head_dim)


def _parts(decoder: Decoder, layer: int) -> tuple[Any, Any, Any]:
    """The key projection, the value projection and the key norm of a layer."""
    attention = decoder.layers[layer].self_attn
    if not hasattr(attention, "qkv_proj"):
        return attention.k_proj, attention.v_proj, getattr(attention, "k_norm", None)
    width = decoder.shape.kv_heads * decoder.shape.head_dim
    if isinstance(attention.qkv_proj, PackedLinear):
        return attention.qkv_proj.rows(-2 * width, -width), attention.qkv_proj.rows(-width, None), None
    if not isinstance(attention.qkv_proj, nn.Linear):
        raise UnsupportedModelError(f"{type(attention.qkv_proj).__name__} cannot be cut into keys and values")
    return _slice(attention.qkv_proj, -2 * width, -width), _slice(attention.qkv_proj, -width, None), None


def _slice(fused: nn.Linear, start: int, stop: int | None) -> nn.Linear:
    """Some outputs of a linear layer, sharing its memory."""
    part = nn.Linear(1, 1, bias=fused.bias is not None, device="meta")
    part.weight = nn.Parameter(fused.weight[start:stop], requires_grad=False)
    if fused.bias is not None:
        part.bias = nn.Parameter(fused.bias[start:stop], requires_grad=False)
    return part


def _mean(modules: Sequence[nn.Module | None], dtype: torch.dtype) -> nn.Module | None:
    """A module whose parameters are the means of those of several; dtype: of a mean of packed ones."""
    first = modules[0]
    if first is None:
        return None
    if isinstance(first, PackedLinear):
        modules = [module.dense(torch.float32) for module in modules if isinstance(module, PackedLinear)]
        first = first.dense(dtype)
    mean = copy.deepcopy(first)
    with torch.no_grad():
        for name, parameter in mean.named_parameters():
            each = [dict(module.named_parameters())[name].float() for module in modules if module is not None]
            parameter.copy_(torch.stack(each).mean(0))
    return mean
