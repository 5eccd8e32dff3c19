"""Experts of a mixture: a file stacks each of their matrices in a tensor of its own, a model holds two in one place."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

# By architecture, of every tensor of a layer: its place, and the view of it that has the tensor's own shape: [experts,
# rows, columns], or [experts, rows] of a bias.
LAYER: dict[str, dict[str, tuple[str, Callable[[Tensor], Tensor]]]] = {
    "qwen3moe": {
        "ffn_gate_exps.weight": ("gate_up_proj", lambda place: place.chunk(2, 1)[0]),
        "ffn_up_exps.weight": ("gate_up_proj", lambda place: place.chunk(2, 1)[1]),
        "ffn_down_exps.weight": ("down_proj", lambda place: place),
    },
    "gpt-oss": {
        "ffn_gate_exps.weight": ("gate_up_proj", lambda place: place[..., ::2].mT),
        "ffn_gate_exps.bias": ("gate_up_proj_bias", lambda place: place[..., ::2]),
        "ffn_up_exps.weight": ("gate_up_proj", lambda place: place[..., 1::2].mT),
        "ffn_up_exps.bias": ("gate_up_proj_bias", lambda place: place[..., 1::2]),
        "ffn_down_exps.weight": ("down_proj", lambda place: place.mT),
        "ffn_down_exps.bias": ("down_proj_bias", lambda place: place),
    },
}


@dataclass(frozen=True)
class Part:
    """Where a stacked tensor goes: a place of the model, by its name there, and what of it the tensor fills."""

    place: str
    view: Callable[[Tensor], Tensor]


def expert_parts(architecture: str, layers: int) -> dict[str, Part]:
    """The tensors of experts by their names in a file; none where the architecture has no experts."""
    return {
        f"blk.{layer}.{name}": Part(f"model.layers.{layer}.mlp.experts.{place}", view)
        for layer in range(layers)
        for name, (place, view) in LAYER.get(architecture, {}).items()
    }


@dataclass
class Joined:
    """Places as they are filled. lacking: how many tensors each still waits for."""

    lacking: Counter[str]
    filled: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Iterable[Part]) -> "Joined":
        return cls(Counter(part.place for part in parts))

    def put(self, part: Part, values: Tensor, shape: torch.Size) -> Tensor | None:
        """Fill a part; with its last one, the whole place, [*shape] in the dtype of the first, which is let go of."""
        if part.place not in self.filled:
            self.filled[part.place] = torch.empty(shape, dtype=values.dtype)
        part.view(self.filled[part.place]).copy_(values)
        self.lacking[part.place] -= 1
        return None if self.lacking[part.place] else self.filled.pop(part.place)
