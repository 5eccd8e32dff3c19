"""Rotation of queries and keys, with each family's own code, at the positions and frequencies a plan wants.

The stock module picks length-dependent frequencies (LongRoPE's short and long factors, dynamic NTK) from the longest
row of the batch and may switch in the middle of a text, leaving old keys rotated the old way. Here a sequence's
frequencies are chosen once, from its whole length, and never change.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from winnow.runtime.families import rope_types
from winnow.runtime.shape import rope_parameters

AVERAGED = 1024  # rope positions whose rotations are made at once, where only their mean is wanted
Frequencies = dict[str | None, Any]  # per layer type: what the family's rotary module reads `inv_freq` from


class Rotary:
    """The rotary embedding of a model, detached from the length of the batch."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.config = model.config
        self._module: nn.Module = model.model.rotary_emb
        self._types = rope_types(model.config)
        # Below the decorators that recompute frequencies from the batch lies the family's own cos and sin.
        forward: Any = type(self._module).forward
        while hasattr(forward, "__wrapped__"):
            forward = forward.__wrapped__
        self._forward: Callable[..., tuple[Tensor, Tensor]] = forward
        attention = model.model.layers[0].self_attn
        self._apply: Callable[..., tuple[Tensor, Tensor]] = sys.modules[type(attention).__module__].apply_rotary_pos_emb
        self._sample = torch.empty(0, dtype=model.dtype, device=model.device)
        self._choose = lru_cache(maxsize=64)(self._frequencies)

    @property
    def kinds(self) -> tuple[str | None, ...]:
        """The layer types that have frequencies of their own; (None,) where all share."""
        return tuple(self._types)

    def identity(self) -> tuple[Tensor, Tensor]:
        """cos = 1, sin = 0, as wide as the family's, so that a layer hands over q and k unrotated."""
        cos, _ = self.tables(self.choose(1), torch.zeros(1, dtype=torch.int64, device=self._sample.device))[
            self.kinds[0]
        ]
        return torch.ones_like(cos), torch.zeros_like(cos)

    def choose(self, length: int) -> Frequencies:
        """The frequencies of a sequence that will use rope positions below `length`, its new tokens included."""
        return self._choose(self._regime(length))

    def tables(self, frequencies: Frequencies, positions: Tensor) -> dict[str | None, tuple[Tensor, Tensor]]:
        """cos and sin, each `[1, rows, width]` in the model's dtype, per layer type. positions: [rows]."""
        extra = [() if kind is None else (kind,) for kind in self.kinds]
        return {
            kind: self._forward(frequencies[kind], self._sample, positions[None], *arguments)
            for kind, arguments in zip(self.kinds, extra, strict=True)
        }

    def rotate(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        """x: [1, heads, rows, head_dim], rotated by the family's own function."""
        return self._apply(x, x[:, :0], *tables)[0]

    def rotate_both(self, q: Tensor, k: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The same for queries and keys at once."""
        return self._apply(q, k, *tables)

    def _regime(self, length: int) -> int:
        """The smallest length with the same frequencies as `length`, so that sequences share them."""
        regime = 0
        for kind, name in self._types.items():
            rope = rope_parameters(self.config, kind)
            if name == "longrope":
                original = rope["original_max_position_embeddings"]
                regime = max(regime, original + 1 if length > original else 0)
            elif name == "dynamic" and length > self.config.max_position_embeddings:
                regime = max(regime, length)
        return regime

    def _frequencies(self, length: int) -> Frequencies:
        return {kind: self._proxy(kind, name, length) for kind, name in self._types.items()}

    def _proxy(self, kind: str | None, name: str, length: int) -> SimpleNamespace:
        prefix = "" if kind is None else f"{kind}_"
        inv_freq = getattr(self._module, f"{prefix}original_inv_freq")
        scaling = getattr(self._module, f"{prefix}attention_scaling")
        if name in ("longrope", "dynamic") and length:
            extra = {} if kind is None else {"layer_type": kind}
            inv_freq, new_scaling = ROPE_INIT_FUNCTIONS[name](self.config, self._sample.device, seq_len=length, **extra)
            scaling = new_scaling if name == "dynamic" else scaling
        values = {f"{prefix}inv_freq": inv_freq, f"{prefix}attention_scaling": scaling}
        return SimpleNamespace(config=self.config, rope_type=self._types, **values)


@dataclass(frozen=True)
class LayerRope:
    """How the keys of one layer of one sequence are rotated."""

    rotary: Rotary
    frequencies: Frequencies
    kind: str | None

    def turn(self, keys: Tensor, places: Tensor, *, back: bool = False) -> Tensor:
        """Keys [kv_heads, units, head_dim], float32, rotated at rope positions [1 or kv_heads, units], or back."""
        cos, sin = (each.float() for each in self.rotary.tables(self.frequencies, places.flatten().long())[self.kind])
        if back:  # whatever else cos and sin are multiplied by
            square = cos.square() + sin.square()
            cos, sin = cos / square, -sin / square
        rows = keys[None] if len(places) == 1 else keys.flatten(0, 1)[None, None]
        return self.rotary.rotate(rows, (cos, sin)).reshape(keys.shape)

    def averaged(self, places: range, device: torch.device) -> Callable[[Tensor], Tensor]:
        """What rotates x, [heads, rows, head_dim] float32, at each of some rope positions: to the mean over them."""
        sums: list[Tensor] = []
        for start in range(places.start, places.stop, AVERAGED):  # so that what is made does not grow with them
            part = torch.arange(start, min(start + AVERAGED, places.stop), device=device)
            tables = self.rotary.tables(self.frequencies, part)[self.kind]
            found = [each.float().sum(1, keepdim=True) for each in tables]
            sums = [mine + more for mine, more in zip(sums, found, strict=True)] if sums else found
        cos, sin = (each / len(places) for each in sums)  # rotation is linear in both
        return lambda x: self.rotary.rotate(x[None], (cos, sin))[0]
