"""What a model with packed weights stands for, as a stock model in float32."""

import torch
from transformers import PreTrainedModel

from winnow.kernels.packed import PackedWeight
from winnow.models.packed import named_weights


@torch.no_grad()
def expanded(packed: PreTrainedModel, fresh: PreTrainedModel) -> PreTrainedModel:
    """`fresh`, a stock model of the same configuration, with the weights that `packed` stands for."""
    for name, weight in named_weights(packed):
        place = fresh.get_parameter(name)
        place.copy_(weight.float() if isinstance(weight, PackedWeight) else weight)
    return fresh
