"""The tree that Winnow drives: the user's modules again, over the very same parameters and buffers.

What driving changes, the attention implementation and the kernels of linear layers, it changes in the copy, so the
model object that a user holds is never touched and may run natively at the same time.
"""

import copy
from typing import Any

from transformers import PreTrainedModel

from winnow.kernels.linear import use_fast_linears


def twin_of(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the module tree of `model` that shares all its tensors."""
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def shadow_of(model: PreTrainedModel, attention: str) -> PreTrainedModel:
    """A copy of the module tree of `model`, in evaluation mode, that shares all its tensors.

    attention: the registered implementation that its layers call. Linear layers of few rows go through the kernel.
    """
    tree = twin_of(model).eval()
    tree.config._attn_implementation = attention
    use_fast_linears(tree)
    return tree
