"""Rotary embeddings as a GGUF file states them, in transformers' words.

transformers' GGUF loader drops all of this but the base, which makes long prompts wrong without a word. Here a scaling
is rebuilt, or refused by name. What a key means is taken from llama.cpp, which reads it, and from its conversion
scripts, which write it.
"""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from winnow.models.gguf.fields import Fields
from winnow.models.gguf.header import raw

DEFAULT_BASE = 10000.0
FREQS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
LONGROPE = ("llama", "phi3")  # architectures whose long and short factors llama.cpp reads
# Every Llama 3.1, 3.2 and 3.3 has these; a file holds only the factors that follow from them.
LLAMA3_LOW, LLAMA3_HIGH = 1.0, 4.0
LLAMA3_CONTEXTS = [2**power for power in range(8, 21)]
FLOAT32 = 2e-6  # a few roundings of float32


def rope_of(fields: Fields, rotated: int, positions: int) -> dict[str, Any]:
    """`rope_parameters` of a transformers configuration. rotated: dimensions of a head that are rotated. positions:
    the model's. Raises UnsupportedModelError for a scaling that is not known exactly, ModelError for damaged keys."""
    base = {"rope_theta": fields.number("rope.freq_base", DEFAULT_BASE)}
    fields.only("rope.scaling.alpha", 0.0)
    fields.only("rope.scaling.yarn_log_multiplier", 0.0)
    fields.only("rope.scaling.finetuned", True, False)  # says where a scaling comes from, not what it is
    kind = _kind(fields)
    if kind == "default":
        original = fields.integer("rope.scaling.original_context_length", positions)
        if original != positions:
            fields.refuse(f"rope.scaling.original_context_length = {original} without a scaling is not understood")
    if kind not in ("yarn", "longrope"):
        _unscaled_attention(fields, kind)
    return base | _BUILDERS[kind](fields, rotated, positions, base["rope_theta"])


def _kind(fields: Fields) -> str:
    """The rope type, as transformers calls it."""
    stated = fields.text("rope.scaling.type", "linear")  # llama.cpp's default, which scales nothing without a factor
    if stated not in ("none", "linear", "yarn", "longrope"):
        fields.refuse(f"rope.scaling.type = {stated!r} is unknown; known types: none, linear, yarn, longrope")
    tensors, architecture = fields.header.tensors, fields.header.architecture
    factors = {LONG, SHORT} & tensors.keys()
    if stated == "longrope" or factors:
        if architecture not in LONGROPE or stated == "yarn" or factors != {LONG, SHORT}:
            fields.refuse(f"rope type {stated!r} with the tensors {sorted(factors)} is not understood")
        return "longrope"
    if FREQS in tensors:
        if architecture != "llama" or stated == "yarn":
            fields.refuse(f"the tensor {FREQS} with architecture {architecture} and rope type {stated!r} is unknown")
        return "llama3"
    if stated == "linear" and _factor(fields, 1.0) == 1.0:
        return "default"
    if stated != "none" and architecture == "phi3":
        fields.refuse(f"rope.scaling.type = {stated!r} is not supported for phi3")
    return "default" if stated == "none" else stated


def _factor(fields: Fields, default: float) -> float:
    """The scaling factor under its name of today or the old one; 0 says that there is none."""
    old = fields.number("rope.scale_linear", 0.0, above=-1e-9)
    return fields.number("rope.scaling.factor", old, above=-1e-9) or default


def _unscaled_attention(fields: Fields, kind: str) -> None:
    for key in ("attn_factor", "yarn_attn_factor"):
        fields.only(f"rope.scaling.{key}", 1.0)
    if kind != "yarn":
        for key in ("yarn_ext_factor", "yarn_beta_fast", "yarn_beta_slow"):
            if fields.stated(f"rope.scaling.{key}") is not None:
                fields.refuse(f"rope.scaling.{key} without the rope type yarn is not understood")


def _default(fields: Fields, rotated: int, positions: int, theta: float) -> dict[str, Any]:
    fields.stated("rope.scaling.factor")  # of type none: llama.cpp passes over it too
    fields.stated("rope.scale_linear")
    return {"rope_type": "default"}


def _linear(fields: Fields, rotated: int, positions: int, theta: float) -> dict[str, Any]:
    return {"rope_type": "linear", "factor": _factor(fields, 1.0)}


def _yarn(fields: Fields, rotated: int, positions: int, theta: float) -> dict[str, Any]:
    fields.only("rope.scaling.yarn_ext_factor", 1.0)
    built: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": _factor(fields, 0.0) or fields.number("rope.scaling.factor", above=0.0),
        "original_max_position_embeddings": fields.integer("rope.scaling.original_context_length", positions),
    }
    for key in ("beta_fast", "beta_slow"):
        value = fields.number(f"rope.scaling.yarn_{key}", None)
        if value is not None:
            built[key] = value
    # llama.cpp multiplies what YaRN does to the attention by attn_factor; yarn_attn_factor stands for all of it.
    whole, extra = fields.number("rope.scaling.yarn_attn_factor", None), fields.number("rope.scaling.attn_factor", 1.0)
    if extra != 1.0:
        if whole is not None:
            fields.refuse("rope.scaling.attn_factor and yarn_attn_factor contradict each other")
        whole = extra * (0.1 * math.log(max(built["factor"], 1.0)) + 1.0)
    return built if whole is None else built | {"attention_factor": whole}


def _longrope(fields: Fields, rotated: int, positions: int, theta: float) -> dict[str, Any]:
    fields.only("rope.scaling.factor", 0.0, 1.0)
    for key in ("yarn_attn_factor", "yarn_ext_factor", "yarn_beta_fast", "yarn_beta_slow"):
        fields.only(f"rope.scaling.{key}")
    attention = fields.number("rope.scaling.attn_factor", None)
    if attention is None:
        fields.refuse("rope.scaling.attn_factor is missing beside long and short rope factors")
    return {
        "rope_type": "longrope",
        "long_factor": _factors(fields, LONG, rotated).tolist(),
        "short_factor": _factors(fields, SHORT, rotated).tolist(),
        "original_max_position_embeddings": fields.integer("rope.scaling.original_context_length"),
        "attention_factor": attention,
    }


def _llama3(fields: Fields, rotated: int, positions: int, theta: float) -> dict[str, Any]:
    """Find the parameters whose frequencies are the base's divided by the stored factors."""
    fields.only("rope.scaling.factor", 0.0, 1.0)
    fields.only("rope.scale_linear", 0.0, 1.0)
    factors = _factors(fields, FREQS, rotated)
    if (factors == 1).all():
        return {"rope_type": "default"}
    wanted = theta ** -(torch.arange(0, rotated, 2).double() / rotated) / torch.from_numpy(factors).double()
    stated = fields.integer("rope.scaling.original_context_length", None)
    for original in LLAMA3_CONTEXTS if stated is None else [stated]:
        built = {
            "rope_type": "llama3",
            "factor": float(factors.max()),
            "low_freq_factor": LLAMA3_LOW,
            "high_freq_factor": LLAMA3_HIGH,
            "original_max_position_embeddings": original,
        }
        if torch.allclose(_frequencies(built, rotated, theta), wanted, rtol=FLOAT32, atol=0):
            return built
    fields.refuse(f"the factors in {FREQS} are not those of a Llama 3 scaling")


def _frequencies(parameters: dict[str, Any], rotated: int, theta: float) -> torch.Tensor:
    """[rotated / 2] float64: the inverse frequencies that transformers makes of these parameters."""
    config: Any = SimpleNamespace(rope_parameters=parameters | {"rope_theta": theta}, head_dim=rotated)
    config.standardize_rope_params = lambda: None
    return ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config)[0].double()


def _factors(fields: Fields, name: str, rotated: int) -> np.ndarray:
    """[rotated / 2] float32"""
    info = fields.header.tensors[name]
    if info.type != GGMLQuantizationType.F32 or info.shape != (rotated // 2,):
        fields.damaged(f"{name} is {list(info.shape)} {info.type.name}, not [{rotated // 2}] F32")
    factors = np.array(raw(fields.header, name)).view("<f4")
    if not (np.isfinite(factors) & (factors > 0)).all():
        fields.damaged(f"{name} holds factors that are not positive numbers")
    return factors


_BUILDERS = {"default": _default, "linear": _linear, "yarn": _yarn, "longrope": _longrope, "llama3": _llama3}
