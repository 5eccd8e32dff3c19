"""LoCoCo's convolutions: of which units a cache of fixed size keeps sums, and with what weights.

One per layer, shared by its KV heads: over the units that do not stay, key and value side by side, it says for every
sum how much of each unit goes into it (LoCoCo, arXiv:2406.05317, section 3; the authors' code).
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from winnow.policies.base import ModelShape
from winnow.runtime.adapters import base_name, fingerprint
from winnow.runtime.trained import Kind, are_counts

KIND = Kind("convolutions", "convolutions.safetensors", train="lococo")
SHARE = 0.5  # of the convolution in the weights of a sum, before training


@dataclass(frozen=True)
class ConvolutionsConfig:
    """What convolutions are for. base, fingerprint: of the model that they were trained on; sums: what each makes, per
    KV head; kernel: units that it sees at once, an odd number.

    recipe, data, result: how they were made, for people.
    """

    base: str
    fingerprint: str
    layers: int
    head_dim: int
    sums: int
    kernel: int
    recipe: dict[str, Any] = dataclasses.field(default_factory=dict)
    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    result: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, model: PreTrainedModel, shape: ModelShape, sums: int, kernel: int) -> "ConvolutionsConfig":
        """For a model as it is now."""
        return cls(base_name(model), fingerprint(model), shape.layers, shape.head_dim, sums, kernel)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the tensors of a layer, by name."""
        return {"weight": (self.sums, 2 * self.head_dim, self.kernel), "bias": (self.sums,), "share": ()}


@dataclass(frozen=True)
class Convolution:
    """One layer's. weight: [sums, 2 head_dim, kernel]; bias: [sums]; share: scalar; float32."""

    weight: Tensor
    bias: Tensor
    share: Tensor

    def weights(self, keys: Tensor, values: Tensor, seeds: Tensor) -> Tensor:
        """See `winnow.policies.keep.base.Merger`: W = (1 - share) onehot(seeds) + share softmax(relu(conv(k, v)))."""
        units = torch.cat((keys, values), -1).float().mT  # [kv_heads, 2 head_dim, units]
        told = F.conv1d(units, self.weight, self.bias, padding=self.weight.shape[-1] // 2).relu().softmax(-1)
        alone = torch.zeros_like(told).scatter(-1, seeds[..., None], 1.0)
        return (1 - self.share) * alone + self.share * told


class Convolutions:
    """The convolutions of all layers; implements `winnow.policies.keep.base.Merger`."""

    def __init__(self, config: ConvolutionsConfig, layers: list[Convolution]) -> None:
        self.config, self.layers = config, layers

    @property
    def sums(self) -> int:
        return self.config.sums

    def __call__(self, layer: int, keys: Tensor, values: Tensor, seeds: Tensor) -> Tensor:
        return self.layers[layer].weights(keys, values, seeds)

    @classmethod
    def random(
        cls, config: ConvolutionsConfig, seed: int, share: float = SHARE, device: torch.device | str = "cpu"
    ) -> "Convolutions":
        """Untrained ones: weights of a standard normal distribution, as in the authors' code, and biases as torch draws
        those of a new Conv1d; the same seed gives the same."""
        source = torch.Generator().manual_seed(seed)
        bound = (2 * config.head_dim * config.kernel) ** -0.5

        def draw() -> Convolution:
            weight = torch.randn(config.shapes["weight"], generator=source, dtype=torch.float32)
            bias = bound * (2 * torch.rand(config.shapes["bias"], generator=source, dtype=torch.float32) - 1)
            return Convolution(weight, bias, torch.tensor(share, dtype=torch.float32))

        return cls(config, [draw() for _ in range(config.layers)]).to(device)

    def to(self, device: torch.device | str) -> "Convolutions":
        """The same ones elsewhere; those of `self` are left as they are."""
        moved = [Convolution(*(each.to(device) for each in vars(layer).values())) for layer in self.layers]
        return Convolutions(self.config, moved)

    def save(self, directory: str | Path) -> None:
        """Write `convolutions.safetensors` and `config.json`."""
        tensors = {
            f"layers.{index}.{name}": each
            for index, layer in enumerate(self.layers)
            for name, each in vars(layer).items()
        }
        KIND.save(directory, self.config, tensors)

    @classmethod
    def load(cls, directory: str | Path) -> "Convolutions":
        """What `save` wrote, on the CPU. Raises ModelError where there is none or it is damaged."""
        config = read_config(directory)
        wanted = {f"layers.{layer}.{name}": of for layer in range(config.layers) for name, of in config.shapes.items()}
        tensors = KIND.tensors(directory, wanted)
        layers = [
            Convolution(**{name: tensors[f"layers.{layer}.{name}"].float() for name in config.shapes})
            for layer in range(config.layers)
        ]
        return cls(config, layers)


def read_config(directory: str | Path) -> ConvolutionsConfig:
    """The config of convolutions in a directory. Raises ModelError where there is none or it is damaged."""

    def check(found: ConvolutionsConfig) -> None:
        if not are_counts(found.layers, found.head_dim, found.sums, found.kernel) or not found.kernel % 2:
            raise ValueError("a count is wrong")

    return KIND.config(directory, ConvolutionsConfig, check)


def load_convolutions(source: str | Path | Convolutions, model: PreTrainedModel) -> Convolutions:
    """Convolutions for a model, on its device. Raises ModelError where they were trained on another one."""
    found = source if isinstance(source, Convolutions) else Convolutions.load(source)
    KIND.check_model(found.config, model)
    return found.to(model.device)
