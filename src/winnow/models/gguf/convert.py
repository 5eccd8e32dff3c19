"""The tensors of a GGUF file under their names in a Hugging Face model, quantised ones packed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gguf import dequantize
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

from winnow.errors import ModelError, UnsupportedModelError
from winnow.kernels.packed import PackedWeight, tiles_bytes
from winnow.models.gguf.blocks import PACKABLE, PIECE, dense_tensor, packed_tensor, readable
from winnow.models.gguf.experts import Joined, Part, expert_parts
from winnow.models.gguf.header import Header, TensorInfo, raw
from winnow.models.packed import packable

Progress = Callable[[int, int], None]
# Tensors that are no weights: what they say of the rotation, the configuration has taken.
ROTATION = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
SHARD = 1 << 30  # bytes of a file of converted tensors, and so the most that waits in memory while converting
PIECES = 4  # copies of a piece of a tensor, as floats, while its codes are found


@dataclass(frozen=True)
class Held:
    """A tensor of a model: packed or floats, and the type it had in the file."""

    value: PackedWeight | Tensor
    type: str


def silent(values: int, total: int) -> None:
    """No progress report."""


def tensors_of(header: Header, config: PreTrainedConfig, progress: Progress = silent) -> Iterator[tuple[str, Held]]:
    """Every tensor of the file by its name in the model.

    progress: called with the number of values just converted, and that of all.

    Raises ModelError where the file lacks a tensor, has one too many or of another shape, or holds NaN or infinity.
    """
    places = _places(header, config)
    joined = Joined.of(places.experts.values())
    weights = [info for info in header.tensors.values() if info.name not in ROTATION]
    total = sum(prod(info.shape) for info in weights)
    for info in weights:
        name = places.names[info.name]
        if (part := places.experts.get(info.name)) is None:
            yield name, _held(header, info, places)
        else:
            stored, values = _finite(header, info)
            shape = places.skeleton.get_parameter(name).shape
            if (value := joined.put(part, dense_tensor(stored, values, info.type), shape)) is not None:
                yield name, Held(value, info.type.name)
        progress(prod(info.shape), total)


def packed_sizes(header: Header, config: PreTrainedConfig) -> tuple[PreTrainedModel, dict[str, int]]:
    """What `tensors_of` will make, from the header alone: the model without weights, and the bytes of every tensor that
    comes to be packed, by its name in the model. Where float16 cannot hold a tensor's scales it becomes floats instead.

    Raises ModelError as `tensors_of`, but for values.
    """
    places = _places(header, config)
    found = {}
    for info in header.tensors.values():
        if info.name not in ROTATION and places.packs(info):
            kind, (rows, columns) = PACKABLE[info.type], info.shape
            found[places.names[info.name]] = tiles_bytes(rows, columns, kind.bits, kind.group, bool(kind.zeros))
    return places.skeleton, found


def conversion_bytes(header: Header, packed: Mapping[str, int], skeleton: PreTrainedModel) -> int:
    """The most bytes that writing the converted file takes, estimated from above: a file of tensors, a tensor as it
    comes and as it goes, and floats of a piece of it, or of the whole where it is not packed.

    packed, skeleton: of `packed_sizes`.
    """
    sizes = [prod(info.shape) for info in header.tensors.values()]
    largest = max([info.nbytes for info in header.tensors.values()])
    floats = max([weight.numel() for name, weight in skeleton.named_parameters() if name not in packed], default=0)
    total = sum(packed.values()) + 4 * (sum(sizes) - sum(skeleton.get_parameter(name).numel() for name in packed))
    return min(total, SHARD + largest) + 2 * largest + 8 * floats + PIECES * 4 * PIECE


@dataclass(frozen=True)
class _Places:
    """Where the tensors of a file go. skeleton: the model without weights; processor: converts tensors for it; names:
    of theirs there, by those in the file; experts: those of them that fill a part of a place."""

    skeleton: PreTrainedModel
    processor: Any
    names: dict[str, str]
    experts: dict[str, Part]

    def packs(self, info: TensorInfo) -> bool:
        """Whether a tensor is of a type that is packed, in a place where that may be held."""
        name = self.names[info.name]
        module = self.skeleton.get_submodule(name.rpartition(".")[0])
        return info.type in PACKABLE and len(info.shape) == 2 and name.endswith(".weight") and packable(module)


def _places(header: Header, config: PreTrainedConfig) -> _Places:
    """Raises ModelError unless every tensor has a place, and every place a tensor."""
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config)
    kind = TENSOR_PROCESSORS.get(header.architecture.replace("-", "_"), TensorProcessor)
    processor = kind(config=config.to_dict())
    # Without children: every module would be asked by itself, which takes seconds, for what the whole has named.
    whole: Any = SimpleNamespace(config=config, state_dict=skeleton.state_dict, named_children=lambda: ())
    names = get_gguf_hf_weights_map(whole, processor)
    # What is a parameter by itself, and no module's weight, is one in the file all the same.
    names |= {f"{name}.weight": place for name, place in names.items() if not name.endswith((".weight", ".bias"))}
    experts = expert_parts(header.architecture, config.num_hidden_layers)
    names |= {name: part.place for name, part in experts.items()}
    _check_names(header, skeleton, names, experts)
    return _Places(skeleton, processor, names, experts)


def _held(header: Header, info: TensorInfo, places: _Places) -> Held:
    """One tensor, converted."""
    if places.packs(info) and (packed := packed_tensor(raw(header, info.name), info.type)) is not None:
        moved = places.processor.process(packed.data.numpy(), info.name).weights  # it moves rows, whatever they hold
        rows = replace(packed, data=torch.from_numpy(np.ascontiguousarray(moved)))
        return Held(rows.in_tiles(), info.type.name)
    stored, values = _finite(header, info)
    done = places.processor.process(values, info.name)
    if done.weights is values:
        return Held(dense_tensor(stored, values, info.type), info.type.name)
    return Held(torch.from_numpy(np.ascontiguousarray(done.weights)), info.type.name)


def _finite(header: Header, info: TensorInfo) -> tuple[np.ndarray, np.ndarray]:
    """A tensor as it is stored, and its values, in float32."""
    stored = np.asarray(raw(header, info.name))
    with np.errstate(all="ignore"):  # of scales that are NaN or infinite
        values = dequantize(stored, info.type)
    if not np.isfinite(values).all():
        raise ModelError(f"{header.path.name}: the tensor {info.name} holds NaN or infinity; download the file again")
    return stored, values


def _check_names(header: Header, skeleton: PreTrainedModel, names: dict[str, str], experts: Mapping[str, Part]) -> None:
    """Every tensor has a place of its shape in the model, and the model's every place a tensor."""
    here = header.tensors.keys() - set(ROTATION)
    if unknown := sorted(here - names.keys()):
        raise UnsupportedModelError(
            f"{header.path.name}: holds {len(unknown)} tensors that a {header.architecture} model has no place for, "
            f"such as {unknown[0]}; its configuration and its tensors do not belong together"
        )
    tied = {"lm_head.weight"} if skeleton.config.tie_word_embeddings else set()
    places = {name: value.shape for name, value in skeleton.state_dict().items() if name not in tied}
    joined = {part.place for part in experts.values()}
    if missing := sorted((experts.keys() - here) | (places.keys() - joined - {names[name] for name in here})):
        raise ModelError(
            f"{header.path.name}: lacks {len(missing)} tensors that the model needs, such as {missing[0]}; "
            "download it again"
        )
    for name in sorted(here):
        wanted, found = places.get(names[name]), header.tensors[name].shape
        if name in experts and wanted is not None:
            wanted = experts[name].view(torch.empty(wanted, device="meta")).shape
        if not readable(header.tensors[name].type):
            raise UnsupportedModelError(
                f"{header.path.name}: the tensor {name} is of the type {header.tensors[name].type.name}, which gguf "
                "cannot turn into floats; get the file in another quantisation"
            )
        if wanted is not None and tuple(wanted) != found:
            raise ModelError(
                f"{header.path.name}: the tensor {name} has the shape {list(found)} where the configuration says "
                f"{list(wanted)}; download it again"
            )
