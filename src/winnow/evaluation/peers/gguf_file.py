"""The weights of a loaded model as a GGUF file, without a vocabulary: prompts go in as token ids."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from winnow.errors import MissingExtraError, UnsupportedModelError

FAMILIES = {"llama": "llama", "qwen3": "qwen3"}  # model_type -> GGUF architecture
TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
IN_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def check_gguf(config: Any) -> None:
    """Raise MissingExtraError or UnsupportedModelError where `write_gguf` could not write a model of this config."""
    if find_spec("gguf") is None:
        raise MissingExtraError("llama.cpp reads its weights from a GGUF file; pip install gguf to write it")
    if config.model_type not in FAMILIES:
        raise UnsupportedModelError(
            f"model_type={config.model_type!r} is not converted to GGUF here; known: {', '.join(FAMILIES)}"
        )
    kind = config.rope_parameters.get("rope_type", "default")
    if kind != "default":
        raise UnsupportedModelError(f"rope_type={kind!r} is not converted to GGUF here; only 'default' is")
    if getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False):
        raise UnsupportedModelError("a model with biases is not converted to GGUF here")
    if getattr(config, "use_sliding_window", False):
        raise UnsupportedModelError("a model with sliding windows is not converted to GGUF here")


def write_gguf(model: PreTrainedModel, path: Path) -> None:
    """Matrices in the model's own dtype, vectors in float32. Raises what `check_gguf` raises."""
    check_gguf(model.config)
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(str(path), FAMILIES[config.model_type])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    kinds: dict[torch.dtype, Any] = {
        torch.float32: gguf.GGMLQuantizationType.F32,
        torch.float16: gguf.GGMLQuantizationType.F16,
        torch.bfloat16: gguf.GGMLQuantizationType.BF16,
    }
    for name, tensor in _tensors(model):
        if tensor.dtype is torch.bfloat16:  # numpy knows no bfloat16
            writer.add_tensor(name, tensor.view(torch.uint16).numpy().view(np.uint8), raw_dtype=kinds[tensor.dtype])
        else:
            writer.add_tensor(name, tensor.numpy(), raw_dtype=kinds[tensor.dtype])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleaved(weight: Tensor, heads: int) -> Tensor:
    """[heads * head_dim, ...] with the two halves of every head's rotated pairs put side by side.

    llama.cpp rotates neighbours (x0, x1) in the Llama family, transformers (x0, x[head_dim / 2]).
    """
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def _tensors(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    config = model.config
    permute: dict[str, Callable[[Tensor], Tensor]] = {}
    if config.model_type == "llama":
        permute["attn_q"] = lambda weight: interleaved(weight, config.num_attention_heads)
        permute["attn_k"] = lambda weight: interleaved(weight, config.num_key_value_heads)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        tensor = tensor.detach().cpu().contiguous()
        if name in TOP:
            renamed = TOP[name]
        else:
            _, _, layer, rest = name.split(".", 3)
            part = IN_LAYER[rest.removesuffix(".weight")]
            renamed = f"blk.{layer}.{part}.weight"
            tensor = permute.get(part, lambda same: same)(tensor).contiguous()
        yield renamed, tensor.float() if tensor.dim() == 1 else tensor
