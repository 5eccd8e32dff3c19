"""Retaining heads: small networks that say from a token's own projections how much later tokens will attend to it.

One per layer, `score = W2 act(W1 [q; k; v])` without biases (Locret, arXiv:2410.01805, section 3.2), where q, k and v
are those of all heads as attention is given them, unrotated; families that norm queries and keys have done so by then.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from winnow.models.files import asset, find_part
from winnow.policies.base import ModelShape
from winnow.runtime.adapters import base_name, fingerprint
from winnow.runtime.trained import CONFIG, Kind, are_counts

KIND = Kind("retaining heads", "retaining_heads.safetensors", train="locret")
BUNDLED = ("needle-heads", "needle-speed-2-heads", "smollm2-heads")
# What heads learn to say of a unit: the greatest logit that a later query gives it (Locret), or the logarithm of its
# score when the text is repeated (KVzip).
Target = Literal["logit", "repeat"]
INIT = 0.02  # the standard deviation of new weights: transformers' initializer_range, as in the authors' code


@dataclass(frozen=True)
class HeadsConfig:
    """What retaining heads are for. base, fingerprint: of the model that they were trained on; width: of W1's output.
    target: what they learn to say.

    recipe, data, result: how they were made, for people.
    """

    base: str
    fingerprint: str
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    width: int
    activation: str
    target: Target = "logit"
    recipe: dict[str, Any] = dataclasses.field(default_factory=dict)
    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    result: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def inputs(self) -> int:
        """The width of a token's projections: of all query, key and value heads."""
        return (self.q_heads + 2 * self.kv_heads) * self.head_dim

    @classmethod
    def of(cls, model: PreTrainedModel, shape: ModelShape, width: int, target: Target = "logit") -> "HeadsConfig":
        """For a model as it is now; the activation is that of its MLPs."""
        config: Any = model.config
        activation = getattr(config, "hidden_act", None) or config.hidden_activation
        return cls(
            base=base_name(model),
            fingerprint=fingerprint(model),
            layers=shape.layers,
            q_heads=shape.q_heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            width=width,
            activation=activation,
            target=target,
        )


class RetainingHeads:
    """The heads of all layers. first: per layer [width, inputs]; second: per layer [kv_heads, width]."""

    def __init__(self, config: HeadsConfig, first: list[Tensor], second: list[Tensor]) -> None:
        self.config = config
        self.first, self.second = first, second
        self._activation = ACT2FN[config.activation]

    @classmethod
    def random(
        cls, config: HeadsConfig, seed: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> "RetainingHeads":
        """Untrained heads; the same seed gives the same."""
        source = torch.Generator().manual_seed(seed)

        def draw(rows: int, columns: int) -> Tensor:
            return (INIT * torch.randn(rows, columns, generator=source, dtype=torch.float32)).to(device, dtype)

        first = [draw(config.width, config.inputs) for _ in range(config.layers)]
        return cls(config, first, [draw(config.kv_heads, config.width) for _ in range(config.layers)])

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[kv_heads, rows] float32. q: [q_heads, rows, head_dim], k, v: [kv_heads, rows, head_dim], unrotated."""
        return self.score(layer, joined(q, k, v)).T

    def score(self, layer: int, inputs: Tensor) -> Tensor:
        """[rows, inputs] -> [rows, kv_heads] float32; the last product is in float32, so that few scores are equal."""
        hidden = self._activation(F.linear(inputs.to(self.first[layer].dtype), self.first[layer]))
        return F.linear(hidden.float(), self.second[layer].float())

    def beside(self, model: PreTrainedModel) -> "RetainingHeads":
        """The same heads on a model's device and in its dtype, but float32 for float16, whose range sums may leave."""
        return self.to(model.device, torch.float32 if model.dtype == torch.float16 else model.dtype)

    def to(self, device: torch.device, dtype: torch.dtype) -> "RetainingHeads":
        """The same heads elsewhere; those of `self` are left as they are."""
        move = [[weight.to(device, dtype) for weight in weights] for weights in (self.first, self.second)]
        return RetainingHeads(self.config, *move)

    def save(self, directory: str | Path) -> None:
        """Write `retaining_heads.safetensors` and `config.json`."""
        parts = (("fc1", self.first), ("fc2", self.second))
        tensors = {f"layers.{at}.{name}.weight": each for name, of in parts for at, each in enumerate(of)}
        KIND.save(directory, self.config, tensors)

    @classmethod
    def load(cls, directory: str | Path) -> "RetainingHeads":
        """What `save` wrote, on the CPU. Raises ModelError where there is none or it is damaged."""
        config = read_config(directory)
        shapes = {"fc1": (config.width, config.inputs), "fc2": (config.kv_heads, config.width)}
        layers = range(config.layers)
        wanted = {f"layers.{at}.{name}.weight": shape for name, shape in shapes.items() for at in layers}
        tensors = KIND.tensors(directory, wanted)
        first, second = ([tensors[f"layers.{at}.{name}.weight"] for at in layers] for name in shapes)
        return cls(config, first, second)


def joined(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Projections [heads, rows, head_dim] side by side, all query heads first: [rows, inputs]."""
    return torch.cat([heads.transpose(0, 1).flatten(1) for heads in (q, k, v)], 1)


def read_config(directory: str | Path) -> HeadsConfig:
    """The config of heads in a directory. Raises ModelError where there is none or it is damaged."""

    def check(found: HeadsConfig) -> None:
        counts = are_counts(found.layers, found.q_heads, found.kv_heads, found.head_dim, found.width)
        if found.activation not in ACT2FN or not counts:
            raise ValueError("a count or the activation is wrong")
        if found.target not in get_args(Target):
            raise ValueError(f"target={found.target!r} is none of {', '.join(get_args(Target))}")

    return KIND.config(directory, HeadsConfig, check)


def find_heads(source: str | Path) -> Path:
    """The directory of heads: a local one, or bundled ones by their name or their model's."""
    return find_part(source, "heads", KIND.weights)


def bundled_for(model: PreTrainedModel) -> Path | None:
    """The bundled heads that were trained on exactly these weights, if there are any."""
    here = None
    for name in BUNDLED:
        place = asset(name)
        if (place / CONFIG).is_file():
            here = here or fingerprint(model)
            if read_config(place).fingerprint == here:
                return place
    return None


def load_heads(source: "str | Path | RetainingHeads", model: PreTrainedModel) -> RetainingHeads:
    """Heads for a model, beside it. Raises ModelError where they were trained on another one."""
    heads = source if isinstance(source, RetainingHeads) else RetainingHeads.load(find_heads(source))
    KIND.check_model(heads.config, model)
    return heads.beside(model)
