"""The model families Winnow drives, and the few facts that tell them apart.

Everything inside a layer is Hugging Face's own code. What stands outside the layers (embedding, windows, which layers
are rotated, the scale of the logits) is stated here, per `config.model_type`. A model with anything else is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from winnow.errors import UnsupportedModelError

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
LAYER_TYPES = ("full_attention", "sliding_attention")


def _window_by_type(config: Any, layer: int) -> int | None:
    kinds = getattr(config, "layer_types", None)
    return config.sliding_window if kinds and kinds[layer] == "sliding_attention" else None


def _window_everywhere(config: Any, layer: int) -> int | None:
    return getattr(config, "sliding_window", None)


def _same(config: Any, x: Tensor) -> Tensor:
    return x


def _granite_embedding(config: Any, x: Tensor) -> Tensor:
    return x * config.embedding_multiplier


def _granite_logits(config: Any, logits: Tensor) -> Tensor:
    return logits / config.logits_scaling


def _cohere_logits(config: Any, logits: Tensor) -> Tensor:
    return logits * config.logit_scale


def _soft_capped_logits(config: Any, logits: Tensor) -> Tensor:
    cap = config.final_logit_softcapping
    return logits if cap is None else (logits / cap).tanh() * cap


@dataclass(frozen=True)
class Family:
    """window: (config, layer) -> sliding window or None. rotated: (config, layer) -> whether q and k are rotated.
    embedding, logits: (config, tensor) -> tensor, what the model does outside the layers. refuse: (config) -> why this
    configuration cannot be driven, or None."""

    window: Callable[[Any, int], int | None] = _window_by_type
    rotated: Callable[[Any, int], bool] = lambda config, layer: True
    embedding: Callable[[Any, Tensor], Tensor] = _same
    logits: Callable[[Any, Tensor], Tensor] = _same
    refuse: Callable[[Any], str | None] = lambda config: None


_GEMMA = Family(
    logits=_soft_capped_logits,
    refuse=lambda c: "use_bidirectional_attention" if getattr(c, "use_bidirectional_attention", False) else None,
)

FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "mistral": Family(window=_window_everywhere),
    "qwen2": Family(),
    "qwen3": Family(),
    "qwen3_moe": Family(window=_window_everywhere),
    "phi3": Family(window=_window_everywhere),
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
    "olmo2": Family(),
    "granite": Family(embedding=_granite_embedding, logits=_granite_logits),
    "cohere2": Family(rotated=lambda c, layer: c.layer_types[layer] == "sliding_attention", logits=_cohere_logits),
    "smollm3": Family(
        window=lambda c, layer: _window_by_type(c, layer) if c.use_sliding_window else None,
        rotated=lambda c, layer: bool(c.no_rope_layers[layer]),
    ),
    "gpt_oss": Family(),
}


def check_config(config: Any, name: str) -> Family:
    """The family a configuration belongs to, before any weight is loaded. name: of the model, for messages.

    Raises UnsupportedModelError naming the model type, layer type, rope type or setting that is unknown.
    """
    family = FAMILIES[check_model_type(config.model_type, name)]
    for kind in set(getattr(config, "layer_types", None) or ()):
        if kind not in LAYER_TYPES:
            raise UnsupportedModelError(f"{name}: layer type {kind!r} is unknown; known: {', '.join(LAYER_TYPES)}")
    for rope in rope_types(config).values():
        if rope not in ROPE_TYPES:
            raise UnsupportedModelError(f"{name}: rope_type={rope!r} is unknown; known: {', '.join(ROPE_TYPES)}")
    if reason := family.refuse(config):
        raise UnsupportedModelError(f"{name}: the setting {reason} is not supported")
    return family


def check_model_type(kind: Any, name: str) -> str:
    """The model type that a config names. Raises UnsupportedModelError where it is none of those that are known."""
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise UnsupportedModelError(
            f"{name}: model_type {str(kind)[:60]!r} is unknown; known model types: {', '.join(FAMILIES)}"
        )
    return kind


def family_of(model: PreTrainedModel) -> Family:
    """The family of a loaded model; raises like `check_config`, and where the model lacks a part or is spread out."""
    name = type(model).__name__
    family = check_config(model.config, name)
    body = getattr(model, "model", None)
    parts = ("embed_tokens", "layers", "norm", "rotary_emb")
    missing = [part for part in parts if not hasattr(body, part)] + ([] if hasattr(model, "lm_head") else ["lm_head"])
    if missing:
        raise UnsupportedModelError(f"{name} has no {', '.join(missing)}; load it as a causal language model")
    devices = {str(device) for device in (getattr(model, "hf_device_map", None) or {}).values()}
    if len(devices) > 1:
        raise UnsupportedModelError(f"{name} is spread over {', '.join(sorted(devices))}; load it on one device")
    if empty := [key for key, weight in model.named_parameters() if weight.is_meta]:
        raise UnsupportedModelError(f"{name} has weights without values, such as {empty[0]} (on meta); load them")
    return family


def rope_types(config: Any) -> dict[str | None, str]:
    """Rope type per layer type; the key is None where one serves all layers."""
    parameters = config.rope_parameters
    if "rope_type" in parameters:
        return {None: parameters["rope_type"]}
    return {kind: value["rope_type"] for kind, value in parameters.items() if value is not None}
