"""The attention of one layer when a model learns, or is learnt from: called back by the layer's own code."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from winnow.runtime.block import Tables, check_call
from winnow.runtime.decoder import Decoder
from winnow.runtime.shape import NOT_ROTATED


class LayerCall(ABC):
    """See `runtime.block.Block.attend`."""

    @abstractmethod
    def place(self) -> tuple[Decoder, int, Tables]:
        """Whose layer it is, its number, and cos and sin of the rows."""

    @abstractmethod
    def attended(self, q: Tensor, k: Tensor, v: Tensor, special: dict[str, Any]) -> Tensor:
        """[rows, q_heads, head_dim] of q [q_heads, rows, head_dim], k, v [kv_heads, rows, head_dim], rotated. special:
        scale, window, softcap and sinks, as of `kernels.attend`."""

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *, scaling: float, sliding_window: int | None = None,
        softcap: float | None = None, s_aux: Tensor | None = None, **others: Any,
    ) -> Tensor:  # fmt: skip
        """q: [1, q_heads, rows, head_dim], k, v: [1, kv_heads, rows, head_dim], unrotated.

        Returns [1, rows, q_heads, head_dim] in the dtype of v.
        """
        decoder, layer, tables = self.place()
        window = decoder.shape.windows[layer]
        check_call(module, window, sliding_window, others)
        kind = decoder.rope_kinds[layer]
        if kind is not NOT_ROTATED:
            q, k = decoder.rotary.rotate_both(q, k, tables[kind])
        special = {"scale": scaling, "window": window, "softcap": softcap, "sinks": s_aux}
        # Under mixed precision rotated tensors are float32 again, and logits would be bfloat16: both are our choice.
        with torch.autocast(v.device.type, enabled=False):
            return self.attended(q[0], k[0], v[0], special).to(v.dtype)[None]
