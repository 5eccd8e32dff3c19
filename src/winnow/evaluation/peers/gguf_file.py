"""The weights of a loaded model as a GGUF file, without a vocabulary: prompts go in as token ids."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from winnow.errors import UnsupportedModelError

FAMILIES = ("llama", "qwen3")  # model types, which are GGUF architectures of the same name


def check_gguf(config: Any) -> None:
    """Raise UnsupportedModelError where `write_gguf` could not write a model of this config."""
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
    config = model.config
    writer = gguf.GGUFWriter(str(path), config.model_type)
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
    """By their names in a GGUF file."""
    config = model.config
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[config.model_type.upper()], config.num_hidden_layers)
    rotated = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        renamed = names.get_name(name, (".weight",))
        assert renamed is not None  # or `check_gguf` has let a model pass that has more than the families do
        tensor = tensor.detach().cpu()
        heads = rotated.get(renamed.split(".")[-2])
        if heads is not None and config.model_type == "llama":
            tensor = interleaved(tensor, heads)
        yield renamed, (tensor.float() if tensor.dim() == 1 else tensor).contiguous()
