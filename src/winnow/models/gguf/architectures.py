"""The architectures of GGUF files that Winnow drives, and what each states in keys of its own."""

from collections.abc import Callable
from typing import Any

from winnow.models.gguf.fields import Fields
from winnow.models.gguf.rope import rope_of

Settings = dict[str, Any]

# What llama.cpp calls an architecture, and transformers a model type: those in transformers' table that Winnow drives.
ARCHITECTURES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "phi3": "phi3",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "gpt-oss": "gpt_oss",
}
TABLES = {"gemma3": "gemma3", "qwen3moe": "qwen3_moe", "gpt-oss": "gpt_oss"}  # where the table has another name


def _rope(fields: Fields, settings: Settings, partial: bool = False) -> Settings:
    """`rope_parameters` for the whole head, or (partial) for the part of it that is rotated."""
    head_dim = settings["head_dim"]
    rotated = fields.integer("rope.dimension_count", head_dim)
    fields.only("rope.dimension_count_swa", rotated)
    if rotated > head_dim or rotated % 2 or (rotated < head_dim and not partial):
        fields.refuse(f"rope.dimension_count = {rotated} of {head_dim} dimensions of a head is not supported")
    parameters = rope_of(fields, rotated, settings["max_position_embeddings"])
    if rotated < head_dim:
        parameters["partial_rotary_factor"] = rotated / head_dim
    return {"rope_parameters": parameters}


def _one_base(fields: Fields, settings: Settings) -> Settings:
    """Rope for layers with and without a window, which the family cannot tell apart."""
    rope = _rope(fields, settings)
    fields.only("rope.freq_base_swa", rope["rope_parameters"]["rope_theta"])
    return rope


def plain(fields: Fields, settings: Settings) -> Settings:
    return _rope(fields, settings)


def _qwen3moe(fields: Fields, settings: Settings) -> Settings:
    return _rope(fields, settings) | {"moe_intermediate_size": fields.integer("expert_feed_forward_length")}


def _phi3(fields: Fields, settings: Settings) -> Settings:
    head_dim = settings["hidden_size"] // settings["num_attention_heads"]
    if settings["head_dim"] != head_dim:
        fields.refuse(f"attention.key_length = {settings['head_dim']} is not supported for phi3; {head_dim} is")
    built = _rope(fields, settings, partial=True)
    original = built["rope_parameters"].get("original_max_position_embeddings", settings["max_position_embeddings"])
    window = fields.integer("attention.sliding_window", 0, least=0)
    return built | {"original_max_position_embeddings": original, "sliding_window": window or None}


def _gemma_scale(settings: Settings, largest: int) -> Settings:
    """Gemma's largest model alone scales its attention by the width per head, as in llama.cpp; no key says so."""
    width_per_head = settings["hidden_size"] // settings["num_attention_heads"]
    largest_one = settings["num_hidden_layers"] == largest
    return {"query_pre_attn_scalar": width_per_head if largest_one else settings["head_dim"]}


def _layer_types(fields: Fields, settings: Settings, every: int) -> Settings:
    """Which layers have a window: one in `every` has none, unless the file states a pattern."""
    layers = settings["num_hidden_layers"]
    key = "attention.sliding_window_pattern"
    pattern = fields.header.metadata.get(fields.prefix + key)
    fields.unread.discard(fields.prefix + key)
    if pattern is None or type(pattern) is int:
        period = every if pattern is None else pattern
        windowed = [period == 0 or layer % period < period - 1 for layer in range(layers)]
    elif getattr(pattern, "dtype", None) is not None and len(pattern) == layers:
        windowed = [bool(value) for value in pattern]
    else:
        fields.damaged(f"{fields.prefix}{key} is not a count or a list of {layers} flags")
    return {"layer_types": ["sliding_attention" if flag else "full_attention" for flag in windowed]}


def _gemma2(fields: Fields, settings: Settings) -> Settings:
    return {
        "sliding_window": fields.integer("attention.sliding_window", 4096),
        "attn_logit_softcapping": fields.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": fields.number("final_logit_softcapping", 30.0),
        **_gemma_scale(settings, largest=46),
        **_layer_types(fields, settings, every=2),
        **_one_base(fields, settings),
    }


def _gemma3(fields: Fields, settings: Settings) -> Settings:
    window = fields.integer("attention.sliding_window", 0, least=0)
    local = fields.number("rope.freq_base_swa", 10000.0)
    layers = _layer_types(fields, settings, every=6 if window else 1)
    if not window and "sliding_attention" in layers["layer_types"]:
        fields.damaged("attention.sliding_window is missing beside a pattern of windows")
    return {
        "sliding_window": window or None,
        "final_logit_softcapping": fields.number("final_logit_softcapping", 0.0, above=-1e-9) or None,
        "rope_parameters": {
            "full_attention": _rope(fields, settings)["rope_parameters"],
            "sliding_attention": {"rope_type": "default", "rope_theta": local},  # a scaling is not for these layers
        },
        **_gemma_scale(settings, largest=62),
        **layers,
    }


def _gpt_oss(fields: Fields, settings: Settings) -> Settings:
    built = _one_base(fields, settings)
    if built["rope_parameters"]["rope_type"] == "yarn":
        built["rope_parameters"]["truncate"] = False  # in the model's own configuration; no key holds it
    inner = fields.integer("expert_feed_forward_length", settings["intermediate_size"])
    window = fields.integer("attention.sliding_window")
    return built | {"intermediate_size": inner, "sliding_window": window, **_layer_types(fields, settings, every=2)}


OWN: dict[str, Callable[[Fields, Settings], Settings]] = {
    "qwen3moe": _qwen3moe,
    "phi3": _phi3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gpt-oss": _gpt_oss,
}
