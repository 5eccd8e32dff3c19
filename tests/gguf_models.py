"""GGUF files of whole random models, in any type of tensor, and the weights that they stand for."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize, quantize
from numpy.typing import NDArray
from torch import Tensor

from gguf_files import LAYERS, TOKENS, write_gguf

T = GGMLQuantizationType
Choose = Callable[[str], GGMLQuantizationType]
WRITABLE = (T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.MXFP4, T.TQ1_0, T.TQ2_0)  # gguf quantises to them itself
# Where the float16 scales of the other types lie in a block: all else in it may be anything.
SCALES = {
    T.Q2_K: (80, 82), T.Q3_K: (108,), T.Q4_K: (0, 2), T.Q5_K: (0, 2), T.Q6_K: (208,), T.IQ4_NL: (0,), T.IQ4_XS: (0,),
    T.IQ2_XXS: (0,), T.IQ2_XS: (0,), T.IQ2_S: (0,), T.IQ3_XXS: (0,), T.IQ3_S: (0,), T.IQ1_S: (0,),
}  # fmt: skip
WINDOW = 8
EXPERTS = 4
EXPERT_MODELS = ("qwen3moe", "gpt-oss")


@dataclass(frozen=True)
class Shape:
    """No tile of a kernel divides the vocabulary, nor, where blocks are of 32 columns, most widths."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int


SMALL, WIDE = Shape(96, 6, 2, 16, 160), Shape(256, 4, 2, 64, 256)


@dataclass(frozen=True)
class Written:
    """A file, and its weights in float32 by their names in transformers."""

    path: Path
    weights: dict[str, Tensor]


def shape_for(*types: GGMLQuantizationType) -> Shape:
    return WIDE if any(GGML_QUANT_SIZES[type][0] > 32 for type in types) else SMALL


def write_model(
    path: Path, architecture: str, choose: Choose, *, tied: bool = True, shape: Shape = SMALL,
    keys: dict[str, Any] | None = None, lacking: str = "",
) -> Written:  # fmt: skip
    """choose: the type of each matrix by its name in the file. keys: that are others; lacking: a tensor left out."""
    rng, weights, stored = np.random.default_rng(0), {}, {}
    for name, (theirs, size) in _places(architecture, shape, tied).items():
        if len(size) == 1 or name.endswith(".bias"):
            values = (1 + 0.1 * rng.standard_normal(size)).astype(np.float32)
            stored[name], mine = values, values - (1.0 if architecture == "gemma3" else 0.0)
        else:
            type, rows = choose(name), int(np.prod(size[:-1]))
            data = random_tensor(rng, type, rows, size[-1])
            mine = floats(data, type).reshape(size)
            stored[name] = (data.reshape(*size[:-1], -1), type)
            heads = {"attn_q": shape.heads, "attn_k": shape.kv_heads}.get(name.split(".")[-2])
            if architecture == "llama" and heads:  # the file pairs neighbours, transformers the halves of a head
                mine = np.concatenate([np.concatenate([head[0::2], head[1::2]]) for head in np.split(mine, heads)])
        weights[theirs] = torch.from_numpy(np.ascontiguousarray(mine, np.float32))
    if architecture in EXPERT_MODELS:
        _join_experts(weights, turned=architecture == "gpt-oss")
    stored.pop(lacking, None)
    write_gguf(path, architecture, _keys(architecture, shape) | (keys or {}), stored)
    if tied:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    return Written(path, weights)


def random_tensor(rng: np.random.Generator, type: GGMLQuantizationType, rows: int, columns: int) -> NDArray[Any]:
    """As stored, [rows, bytes] uint8, or floats; its values are of the size that trained weights have."""
    values = (0.6 / columns**0.5 * rng.standard_normal((rows, columns))).astype(np.float32)
    if type in (T.F32, T.F16):
        return values.astype({T.F32: np.float32, T.F16: np.float16}[type])
    if type in WRITABLE or type == T.BF16:
        return quantize(values, type)
    block, size = GGML_QUANT_SIZES[type]
    data = rng.integers(0, 256, (rows, columns // block, size), np.uint8)
    if type == T.NVFP4:  # scales of 8 bits, of which 127 is NaN
        data[..., :4] = rng.integers(8, 40, data[..., :4].shape)
    if type == T.IQ1_M:  # its float16 is spread over four nibbles
        data[..., 49::2] = data[..., 49::2] & 0x0F | np.array([0, 0, 0x80, 0x10], np.uint8)
        return data.reshape(rows, -1)
    if type not in SCALES:
        return data.reshape(rows, -1)
    fill = {at: np.ones(data.shape[:2], np.float16) for at in SCALES[type]}
    _put(data, fill)
    spread = floats(data.reshape(rows, -1), type).std()
    sizes = 0.6 / columns**0.5 / spread * (0.5 + rng.random((len(fill), *data.shape[:2])))
    _put(data, dict(zip(fill, sizes.astype(np.float16), strict=True)))
    return data.reshape(rows, -1)


def floats(data: NDArray[Any], type: GGMLQuantizationType) -> NDArray[np.float32]:
    return dequantize(data, type).astype(np.float32).reshape(len(data), -1)


def _put(blocks: NDArray[np.uint8], scales: dict[int, NDArray[np.float16]]) -> None:
    for at, values in scales.items():
        blocks[..., at : at + 2] = values[..., None].view(np.uint8)


def _places(architecture: str, shape: Shape, tied: bool) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name in the file -> name in transformers, size."""
    hidden, inner = shape.hidden, shape.heads * shape.head_dim
    kv = shape.kv_heads * shape.head_dim
    places: dict[str, tuple[str, tuple[int, ...]]] = {
        "token_embd.weight": ("model.embed_tokens.weight", (len(TOKENS), hidden)),
        "output_norm.weight": ("model.norm.weight", (hidden,)),
    }
    if not tied:
        places["output.weight"] = ("lm_head.weight", (len(TOKENS), hidden))
    parts: dict[str, tuple[str, tuple[int, ...]]] = {
        "attn_norm": ("input_layernorm", (hidden,)),
        "attn_q": ("self_attn.q_proj", (inner, hidden)),
        "attn_k": ("self_attn.k_proj", (kv, hidden)),
        "attn_v": ("self_attn.v_proj", (kv, hidden)),
        "attn_output": ("self_attn.o_proj", (hidden, inner)),
        "ffn_norm": ("post_attention_layernorm", (hidden,)),
        "ffn_gate": ("mlp.gate_proj", (shape.ffn, hidden)),
        "ffn_up": ("mlp.up_proj", (shape.ffn, hidden)),
        "ffn_down": ("mlp.down_proj", (hidden, shape.ffn)),
    }
    if architecture in ("qwen3", "gemma3"):
        parts |= {f"attn_{k}_norm": (f"self_attn.{k}_norm", (shape.head_dim,)) for k in "qk"}
    if architecture == "gemma3":
        parts["post_attention_norm"] = ("post_attention_layernorm", (hidden,))
        parts["ffn_norm"] = ("pre_feedforward_layernorm", (hidden,))
        parts["post_ffw_norm"] = ("post_feedforward_layernorm", (hidden,))
    if architecture in EXPERT_MODELS:
        _replace_by_experts(parts, architecture, shape)
    for layer in range(LAYERS):
        for mine, (theirs, size) in parts.items():
            file, model = f"blk.{layer}.{mine}", f"model.layers.{layer}.{theirs}"
            bare = theirs.endswith("sinks")
            places[f"{file}.weight"] = (model if bare else f"{model}.weight", size)
            if architecture == "gpt-oss" and "norm" not in mine and not bare:
                places[f"{file}.bias"] = (f"{model}.bias", size[:-1])
    return places


def _replace_by_experts(parts: dict[str, tuple[str, tuple[int, ...]]], architecture: str, shape: Shape) -> None:
    """What mixtures have in the place of one pair of matrices."""
    for name in ("gate", "up", "down"):
        theirs, size = parts.pop(f"ffn_{name}")
        parts[f"ffn_{name}_exps"] = (theirs.replace("mlp.", "mlp.experts."), (EXPERTS, *size))
    router = "mlp.gate" if architecture == "qwen3moe" else "mlp.router"
    parts["ffn_gate_inp"] = (router, (EXPERTS, shape.hidden))
    if architecture == "qwen3moe":
        parts |= {f"attn_{k}_norm": (f"self_attn.{k}_norm", (shape.head_dim,)) for k in "qk"}
    else:
        parts["post_attention_norm"] = parts.pop("ffn_norm")
        parts["attn_sinks"] = ("self_attn.sinks", (shape.heads,))


def _join_experts(weights: dict[str, Tensor], *, turned: bool) -> None:
    """The matrices of experts as transformers has them: gate above up; or, turned, columns of one between those of the
    other."""
    for name in [name for name in weights if "experts.gate_proj" in name]:
        stem, kind = name.rsplit(".gate_proj.", 1)
        gate, up, down = (weights.pop(f"{stem}.{part}_proj.{kind}") for part in ("gate", "up", "down"))
        joined = torch.stack((gate, up), 2).flatten(1, 2) if turned else torch.cat((gate, up), 1)
        if turned and kind == "weight":
            joined, down = joined.mT, down.mT
        end = "" if kind == "weight" else "_bias"
        weights[f"{stem}.gate_up_proj{end}"], weights[f"{stem}.down_proj{end}"] = joined, down


def _keys(architecture: str, shape: Shape) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.ffn,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
    }
    if architecture == "gemma3":
        keys |= {"attention.sliding_window": WINDOW, "attention.sliding_window_pattern": 2, "rope.freq_base_swa": 1e3}
    if architecture in EXPERT_MODELS:
        keys |= {"expert_count": EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": shape.ffn}
    if architecture == "gpt-oss":
        keys["attention.sliding_window"] = WINDOW
    return {f"{architecture}.{key}": value for key, value in keys.items()}
