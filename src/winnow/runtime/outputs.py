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
    group = decoder.shape.q_heads // len(values)
    for head, mine in enumerate(values):
        weights = [_projection(decoder, layer, head * group + each) for each in range(group)]
        for start in range(0, len(mine), UNITS):
            units = mine[start : start + UNITS].float()
            found[head, start : start + UNITS] = sum((units @ weight).abs().sum(-1) for weight in weights) / group
    return found


def _projection(decoder: Decoder, layer: int, head: int) -> Tensor:
    """What a layer makes of a query head's part of its attention, [head_dim, hidden] float32, its bias left out.

    Asked of the module, which may hold its weight in any form, with adapters beside it.
    """
    shape = decoder.shape
    inputs = torch.zeros(shape.head_dim + 1, shape.q_heads * shape.head_dim, dtype=decoder.dtype, device=decoder.device)
    inputs[:-1, head * shape.head_dim : (head + 1) * shape.head_dim].fill_diagonal_(1)
    outputs = decoder.layers[layer].self_attn.o_proj(inputs).float()
    return outputs[:-1] - outputs[-1]
