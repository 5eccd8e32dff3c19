"""What loading a model would make, from its configuration and the headers of its files: no weight is read."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from winnow.devices import parse_dtype
from winnow.errors import ModelError
from winnow.kernels.linear import PIECE, multiplied_in
from winnow.models.config import read_config
from winnow.models.files import check_directory, is_converted, tensors, weight_files
from winnow.models.hub import in_cache
from winnow.models.packed import rounded_sizes
from winnow.models.weights import model_class
from winnow.policies.base import ModelShape
from winnow.runtime.families import check_config
from winnow.runtime.loading import Weights, checked_config, gguf_file, locate, tokenizer_in
from winnow.runtime.shape import shape_of

FLOATS = 4  # bytes of a float32


@dataclass(frozen=True)
class Outline:
    """A model as it will be held on a CPU.

    skeleton: its modules without weights. packed: bytes of the weights that are held packed, by their names in it.
    dtype: of the others, of activations and units. converted: the most bytes that converting the file takes, which
    happens once; 0 where nothing is converted. rounded: whether floats are rounded once they are loaded.
    """

    skeleton: nn.Module
    packed: dict[str, int]
    dtype: torch.dtype
    _tokenizer: Callable[[], PreTrainedTokenizerBase | None]
    converted: int = 0
    rounded: bool = False

    @cached_property
    def shape(self) -> ModelShape:
        config: Any = self.skeleton.config
        return shape_of(config, self.dtype.itemsize)

    @property
    def weights(self) -> int:
        """Bytes of all weights; those that modules share count once."""
        return sum(
            self.packed.get(name, weight.numel() * self.dtype.itemsize)
            for name, weight in self.skeleton.named_parameters()
        )

    @property
    def loading(self) -> int:
        """The most bytes that are held at once until the model is there, its weights among them."""
        if not self.rounded:
            return max(self.weights, self.converted)
        largest = max(self.skeleton.get_parameter(name).numel() for name in self.packed)
        return self._dense + sum(self.packed.values()) + 4 * FLOATS * largest  # all floats go when all are rounded

    @property
    def expanded(self) -> int:
        """Bytes of the piece of a weight that is made floats at a time, where it is packed or they are multiplied in
        another dtype, and of what the product makes of it; else of the largest matrix as the product may arrange it."""
        kind = multiplied_in(self.dtype)
        if self.packed or kind != self.dtype:
            return 2 * PIECE * kind.itemsize
        layers = [weight.numel() for name, weight in self.skeleton.named_parameters() if ".layers." in name]
        return max(layers) * self.dtype.itemsize

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """Raises ModelError where its files are damaged."""
        return self._tokenizer()

    @property
    def _dense(self) -> int:
        return sum(weight.numel() for weight in self.skeleton.parameters()) * self.dtype.itemsize


def outline_of(source: str | Path, *, dtype: str | None, weights: Weights) -> Outline:
    """The outline of a name, a GGUF file, a model directory, or a hub id that is in the cache: see `load`.

    Raises ModelError and UnsupportedModelError as loading it would, but for what the values of its weights bring up.
    """
    kind, name, dense = parse_dtype(dtype), str(source), weights == "dense"
    if (file := gguf_file(source)) is not None:
        made = _of_gguf(file, kind or torch.bfloat16, dense=dense)
    elif is_converted(place := locate(source, in_cache)):
        made = _of_converted(place, kind or torch.bfloat16, dense=dense)
    else:
        made = _of_directory(place, name, kind)
    if weights == "packed" and not made.packed:
        raise ModelError(f"{name} holds no quantised weights to keep packed; weights='int4' rounds them to 4 bits")
    return _rounded(made, name) if weights == "int4" else made


def _rounded(made: Outline, name: str) -> Outline:
    if made.packed:
        raise ModelError(f"{name} is quantised already; leave weights='int4' away, or load weights='dense'")
    model: Any = made.skeleton
    packed = rounded_sizes(model, (model.get_input_embeddings(), model.get_output_embeddings()))
    if not packed:
        raise ModelError(f"{name} has no linear layer whose columns are a multiple of 32; use weights='dense'")
    return replace(made, packed=packed, rounded=True)


def _of_directory(place: Path, name: str, dtype: torch.dtype | None) -> Outline:
    config = checked_config(place, name)
    kind = dtype or config.dtype or _stored(place, name)
    return Outline(_skeleton(config), {}, kind, lambda: tokenizer_in(place, name, config))


def _of_gguf(file: Path, dtype: torch.dtype, *, dense: bool) -> Outline:
    from winnow.models.gguf.config import config_of  # here, so that nobody else waits for its imports
    from winnow.models.gguf.convert import conversion_bytes, packed_sizes
    from winnow.models.gguf.header import read_header
    from winnow.models.gguf.tokenizer import tokenizer_of

    header = read_header(file)
    config = config_of(header)
    check_config(config, file.name)
    skeleton, packed = packed_sizes(header, config)
    converted = conversion_bytes(header, packed, skeleton)
    return Outline(skeleton, {} if dense else packed, dtype, lambda: tokenizer_of(header), converted)


def _of_converted(place: Path, dtype: torch.dtype, *, dense: bool) -> Outline:
    from winnow.models.gguf.directory import read_record

    check_directory(place)
    record, config = read_record(place), read_config(place, str(place))
    stored = {name: prod(shape) for name, shape, _ in tensors(sorted(place.glob("model-*.safetensors")))}
    packed = {name: stored[name] for name, facts in record["tensors"].items() if "kind" in facts and not dense}
    return Outline(_skeleton(config), packed, dtype, lambda: tokenizer_in(place, str(place), config))


def _skeleton(config: Any) -> Any:
    with torch.device("meta"):
        return model_class(config)(config)


def _stored(place: Path, name: str) -> torch.dtype:
    """The dtype of the first floats in a checkpoint: what it is loaded in where its configuration names none."""
    kinds = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
    found = (kinds[kind] for _, _, kind in tensors(weight_files(place, name)) if kind in kinds)
    return next(found, torch.float32)
