"""Indexers: small networks that say from the hidden states of two tokens how much one will attend to the other.

One for each layer without a sliding window, shared by its heads (DeepSeek-AI, DeepSeek-V3.2, arXiv:2512.02556, section
2.1, "lightning indexer").
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from winnow.errors import ModelError
from winnow.policies.base import ModelShape
from winnow.runtime.adapters import base_name, fingerprint
from winnow.runtime.trained import Kind, are_counts

KIND = Kind("indexers", "indexers.safetensors", train="indexer")
EPS = 1e-6  # of the norm of hidden states


@dataclass(frozen=True)
class IndexersConfig:
    """What indexers are for. base, fingerprint: of the model that they were trained on; layers: which have one, by
    number; heads: of each; dim: values of a query head, and of a key, at most those of a head of the model.

    recipe, data, result: how they were made, for people.
    """

    base: str
    fingerprint: str
    layers: tuple[int, ...]
    hidden: int
    heads: int
    dim: int
    recipe: dict[str, Any] = dataclasses.field(default_factory=dict)
    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    result: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, model: PreTrainedModel, shape: ModelShape, heads: int, dim: int) -> "IndexersConfig":
        """For a model as it is now."""
        layers = tuple(layer for layer, window in enumerate(shape.windows) if window is None)
        return cls(base_name(model), fingerprint(model), layers, shape.hidden, heads, dim)

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Of the tensors of a layer, by name."""
        return {
            "query": (self.heads * self.dim, self.hidden),
            "key": (self.dim, self.hidden),
            "weight": (self.heads, self.hidden),
        }


@dataclass(frozen=True)
class Indexer:
    """One layer's. query: [heads * dim, hidden]; key: [dim, hidden]; weight: [heads, hidden]; float32."""

    query: Tensor
    key: Tensor
    weight: Tensor

    def keys(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] as they enter the layer -> [rows, dim] float32."""
        return F.linear(_normed(hidden), self.key)

    def scores(self, hidden: Tensor, keys: Tensor) -> Tensor:
        """[rows, hidden], keys [units, dim] -> [rows, units] float32: (heads dim)^-0.5 sum_j w_j relu(q_j . k)."""
        rows, heads = _normed(hidden), len(self.weight)
        queries = F.linear(rows, self.query).unflatten(1, (heads, -1))  # [rows, heads, dim]
        match = (queries @ keys.float().mT).relu()  # [rows, heads, units]
        weights = F.linear(rows, self.weight) * (heads * keys.shape[1]) ** -0.5
        return (weights[:, None] @ match)[:, 0]


class Indexers:
    """The indexers of all layers that have one; implements `winnow.policies.read.base.TokenIndex`."""

    def __init__(self, config: IndexersConfig, layers: list[Indexer]) -> None:
        self.config = config
        self.layers = dict(zip(config.layers, layers, strict=True))

    @property
    def dim(self) -> int:
        return self.config.dim

    def keys(self, layer: int, hidden: Tensor) -> Tensor:
        return self.layers[layer].keys(hidden)

    def scores(self, layer: int, hidden: Tensor, keys: Tensor) -> Tensor:
        return self.layers[layer].scores(hidden, keys)

    @classmethod
    def random(cls, config: IndexersConfig, seed: int, device: torch.device | str = "cpu") -> "Indexers":
        """Untrained ones, which keep the size of what they are given; the same seed gives the same."""
        source = torch.Generator().manual_seed(seed)
        drawn = [
            Indexer(
                **{
                    name: torch.randn(of, generator=source, dtype=torch.float32) * config.hidden**-0.5
                    for name, of in config.shapes.items()
                }
            )
            for _ in config.layers
        ]
        return cls(config, drawn).to(device)

    def to(self, device: torch.device | str) -> "Indexers":
        """The same ones elsewhere; those of `self` are left as they are."""
        moved = [Indexer(*(each.to(device) for each in vars(layer).values())) for layer in self.layers.values()]
        return Indexers(self.config, moved)

    def save(self, directory: str | Path) -> None:
        """Write `indexers.safetensors` and `config.json`."""
        tensors = {
            f"layers.{at}.{name}": each for at, layer in self.layers.items() for name, each in vars(layer).items()
        }
        KIND.save(directory, self.config, tensors)

    @classmethod
    def load(cls, directory: str | Path) -> "Indexers":
        """What `save` wrote, on the CPU. Raises ModelError where there is none or it is damaged."""
        config = read_config(directory)
        wanted = {f"layers.{at}.{name}": of for at in config.layers for name, of in config.shapes.items()}
        tensors = KIND.tensors(directory, wanted)
        layers = [
            Indexer(**{name: tensors[f"layers.{at}.{name}"].float() for name in config.shapes}) for at in config.layers
        ]
        return cls(config, layers)


def read_config(directory: str | Path) -> IndexersConfig:
    """The config of indexers in a directory. Raises ModelError where there is none or it is damaged."""

    def check(found: IndexersConfig) -> None:
        layers = isinstance(found.layers, list) and are_counts(*(each + 1 for each in found.layers))
        if not layers or not are_counts(found.hidden, found.heads, found.dim):
            raise ValueError("a count or a layer is wrong")

    found = KIND.config(directory, IndexersConfig, check)
    return dataclasses.replace(found, layers=tuple(found.layers))


def load_indexers(source: str | Path | Indexers, model: PreTrainedModel, shape: ModelShape) -> Indexers:
    """Indexers for a model, on its device. Raises ModelError where they were trained on another one, or do not fit."""
    found = source if isinstance(source, Indexers) else Indexers.load(source)
    KIND.check_model(found.config, model)
    expected = IndexersConfig.of(model, shape, found.config.heads, found.config.dim)
    if (found.config.layers, found.config.hidden) != (expected.layers, expected.hidden) or found.dim > shape.head_dim:
        raise ModelError(f"the indexers do not fit {expected.base}, for which they say they were trained; {KIND.again}")
    return found.to(model.device)


def _normed(hidden: Tensor) -> Tensor:
    return F.rms_norm(hidden.float(), hidden.shape[-1:], eps=EPS)
