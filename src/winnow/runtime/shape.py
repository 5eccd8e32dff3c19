"""The facts of a model that plans and closed formulas go by, from its configuration alone: no weight is needed."""

from typing import Any

from winnow.policies.base import ModelShape
from winnow.runtime.families import FAMILIES, rope_types

NOT_ROTATED = "not rotated"  # in place of the key of a layer's rope tables


def shape_of(config: Any, element_bytes: int) -> ModelShape:
    """config: of a known family, see `check_config`; element_bytes: of activations and units."""
    layers, window = range(config.num_hidden_layers), FAMILIES[config.model_type].window
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return ModelShape(
        layers=len(layers),
        q_heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        hidden=config.hidden_size,
        mlp=(getattr(config, "moe_intermediate_size", None) or config.intermediate_size)
        * getattr(config, "num_experts_per_tok", 1),
        vocab=config.vocab_size,
        windows=tuple(window(config, layer) for layer in layers),
        rotations=tuple(_rope_kind(config, layer) for layer in layers),
        max_positions=_max_positions(config),
        element_bytes=element_bytes,
    )


def rope_parameters(config: Any, kind: str | None) -> dict[str, Any]:
    """Of a layer type; None: of all layers."""
    found: dict[str, Any] = config.rope_parameters if kind is None else config.rope_parameters[kind]
    return found


def _rope_kind(config: Any, layer: int) -> str | None:
    """The key of a layer's rope tables, or NOT_ROTATED."""
    if not FAMILIES[config.model_type].rotated(config, layer):
        return NOT_ROTATED
    kind: str | None = None if None in rope_types(config) else config.layer_types[layer]
    return kind


def _max_positions(config: Any) -> int:
    """How many positions the model was made for, rope scaling included."""
    stated: int = config.max_position_embeddings
    limits = [stated]
    for kind, name in rope_types(config).items():
        rope = rope_parameters(config, kind)
        original = stated if name == "dynamic" else rope.get("original_max_position_embeddings")
        # Llama 3's factor is of frequencies: what its models were made for is what they state.
        if original and rope.get("factor") and name != "llama3":
            limits.append(int(rope["factor"] * original))
    return max(limits)
