"""How much the units of a layer add to what its attention gives out."""

import torch
from torch import Tensor

from winnow.cache.layer import LayerCache
from winnow.runtime.decoder import Decoder

UNITS = 1024  # that are multiplied at a time


@torch.inference_mode()
def output_norms(decoder: Decoder, layer: int, cache: LayerCache) -> Tensor:
    """||W_O v||_1 of the units that a layer holds, [kv_heads, slots] float32, as the mean over the query heads of each
    KV head, W_O being the part of the output projection that takes a query head; 0 where a head has no unit.
    """
    _, values = cache.memory.read(cache.start, cache.stop)
    found = values.new_zeros(values.shape[:2], dtype=torch.float32)
    weights = _projection(decoder, layer).unflatten(0, (len(values), -1))  # [kv_heads, group, head_dim, hidden]
    for head, mine in enumerate(values):
        for start in range(0, len(mine), UNITS):
            units = mine[start : start + UNITS].float()
            each = [(units @ weight).abs().sum(-1) for weight in weights[head]]
            found[head, start : start + UNITS] = torch.stack(each).mean(0)
    return found


@torch.inference_mode()
def head_norms(decoder: Decoder, layer: int, values: Tensor) -> Tensor:
    """||W_O v||_2 of some values of a layer, [kv_heads, units, head_dim], for each query head: [kv_heads, group, units]
    float32."""
    weights = _projection(decoder, layer).unflatten(0, (len(values), -1))  # [kv_heads, group, head_dim, hidden]
    units, squares = values.float()[:, None], weights @ weights.mT
    return (units @ squares * units).sum(-1).clamp_min(0.0).sqrt()


def entering_norms(decoder: Decoder, layer: int, hidden: Tensor) -> Tensor:
    """||x||_2 of what enters the attention of a layer of rows that enter it as [rows, hidden]: [rows] float32."""
    norm = getattr(decoder.layers[layer], "input_layernorm", None)  # some families norm what comes out instead
    return (hidden if norm is None else norm(hidden)).float().norm(dim=-1)


def _projection(decoder: Decoder, layer: int) -> Tensor:
    """What a layer makes of its attention, [q_heads, head_dim, hidden] float32, its bias left out.

    Asked of the module, which may hold its weight in any form, with adapters beside it.
    """
    shape = decoder.shape
    width = shape.q_heads * shape.head_dim
    inputs = torch.eye(width + 1, width, dtype=decoder.dtype, device=decoder.device)  # the last row is 0
    outputs = decoder.layers[layer].self_attn.o_proj(inputs).float()
    return (outputs[:-1] - outputs[-1]).unflatten(0, (shape.q_heads, shape.head_dim))
