"""LoRA adapters of packed models: products are added beside packed weights, which cannot take a sum; floats can."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from winnow.errors import ModelError
from winnow.models.files import ADAPTER, read_object
from winnow.models.finite import check_finite
from winnow.models.packed import PackedLinear

WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
BESIDE = ("gaussian", "eva", "orthogonal")  # ways to begin an adapter that leave what lies beneath as it is
Pairs = dict[str, tuple[PackedLinear | nn.Linear, Tensor, Tensor]]


@torch.no_grad()
def attach(model: PreTrainedModel, directory: Path) -> None:
    """Add the adapter in `directory` to the linear layers of `model`: y += scale * up (down x). Those that a file has
    as floats get the sum, rounded once.

    Raises ModelError where it is damaged, no plain LoRA, or made for other layers or shapes.
    """
    settings, pairs = plain_pairs(model, directory, "load the model with weights='dense'")
    try:  # all of them before any is used
        scales = {layer: _scale(settings, layer, len(down)) for layer, (_, down, _) in pairs.items()}
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelError(f"{directory}: alpha and rank give no scale ({error}); download it again") from error
    for layer, (module, down, up) in pairs.items():
        scaled = up.float() * scales[layer]
        if isinstance(module, PackedLinear):
            module.adapt(down.to(model.device, model.dtype), scaled.to(model.device, model.dtype))
        else:  # another tensor: the one before may be of a model that shares it
            sums = module.weight.float() + (scaled @ down.float()).to(module.weight.device)
            module.weight = nn.Parameter(sums.to(module.weight.dtype), requires_grad=False)


def plain_pairs(model: PreTrainedModel, directory: Path, way_out: str) -> tuple[dict[str, Any], Pairs]:
    """The settings of the adapter in `directory`, and of every linear layer of `model` that it changes, by name, the
    module, down [rank, in] and up [out, rank].

    Raises ModelError where it is damaged, no plain LoRA, or made for other layers or shapes. way_out: what to do then.
    """
    name, settings = f"the adapter {directory.name}", read_object(directory / ADAPTER)
    _check_plain(settings, name, way_out)
    try:
        tensors = load_file(directory / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{directory}: {WEIGHTS} is damaged ({error}); download it again") from error
    check_finite(tensors.items(), name)
    pairs: Pairs = {}
    for key in [key for key in tensors if key.endswith(DOWN)]:
        layer = key.removeprefix(PREFIX).removesuffix(DOWN)
        down, up = tensors.pop(key), tensors.pop(key.removesuffix(DOWN) + UP, torch.empty(0, 0))
        pairs[layer] = (_checked(model, layer, down, up, f"{name} changes {layer}", way_out), down, up)
    if tensors or not pairs:
        raise ModelError(f"{name} holds {min(tensors, default='nothing')}, which is no plain LoRA; {way_out}")
    return settings, pairs


def _check_plain(settings: dict[str, Any], name: str, way_out: str) -> None:
    if settings.get("peft_type") != "LORA":
        raise ModelError(f"{name} is {settings.get('peft_type')}, and only LORA can be taken here; {way_out}")
    for key in (
        "use_dora",
        "fan_in_fan_out",
        "modules_to_save",
        "lora_bias",
        "trainable_token_indices",
        "layer_replication",
        "megatron_config",
        "alora_invocation_tokens",
    ):
        if settings.get(key):
            raise ModelError(f"{name} sets {key}, which is no plain LoRA; {way_out}")
    if isinstance(begun := settings.get("init_lora_weights"), str) and begun not in BESIDE:
        raise ModelError(f"{name} was begun with {begun}, which changes the weights beneath it too; {way_out}")


def _checked(
    model: PreTrainedModel, layer: str, down: Tensor, up: Tensor, what: str, way_out: str
) -> PackedLinear | nn.Linear:
    try:
        module = model.get_submodule(layer)
    except AttributeError as error:
        raise ModelError(f"{what}, which the model does not have; use it with its own model") from error
    shared = getattr(model.get_input_embeddings(), "weight", None)
    if not isinstance(module, (PackedLinear, nn.Linear)) or getattr(module, "weight", module) is shared:
        raise ModelError(f"{what}, which is no linear layer with weights of its own; {way_out}")
    size = module.out_features, module.in_features
    if (up.shape[0], down.shape[1]) != size or up.shape[1] != len(down):
        raise ModelError(f"{what}, and its tensors do not fit a layer of {list(size)}; use it with its own model")
    return module


def _scale(settings: dict[str, Any], layer: str, rank: int) -> float:
    """alpha / rank, or its square root's, as peft scales them; a pattern may give a layer an alpha of its own."""
    from peft.utils.other import get_pattern_key

    patterns: dict[str, float] = settings.get("alpha_pattern") or {}
    of_all = settings.get("lora_alpha")
    alpha = patterns.get(get_pattern_key(list(patterns), layer), 8 if of_all is None else of_all)
    return float(alpha) / (rank**0.5 if settings.get("use_rslora") else rank)
