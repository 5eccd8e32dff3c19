"""Models of known shapes with random weights: speed depends on the shape, not on what the weights have learned."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, PreTrainedModel, Qwen3Config

from winnow.errors import InputError


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder, and the family whose layers it has."""

    family: Callable[..., PreTrainedConfig]
    layers: int
    hidden: int
    q_heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    tied: bool  # one matrix is both the embedding and the head

    def config(self) -> PreTrainedConfig:
        return self.family(
            num_hidden_layers=self.layers,
            hidden_size=self.hidden,
            num_attention_heads=self.q_heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            intermediate_size=self.mlp,
            vocab_size=self.vocab,
            tie_word_embeddings=self.tied,
            max_position_embeddings=131072,
        )

    @property
    def layer_weights(self) -> int:
        """Parameters of one layer's matrices."""
        attention = 2 * self.hidden * self.head_dim * (self.q_heads + self.kv_heads)
        return attention + 3 * self.hidden * self.mlp

    @property
    def head_weights(self) -> int:
        return self.hidden * self.vocab


SHAPES = {
    "smollm2-135m": Shape(LlamaConfig, 30, 576, 9, 3, 64, 1536, 49152, tied=True),
    "qwen3-0.6b": Shape(Qwen3Config, 28, 1024, 16, 8, 128, 3072, 151936, tied=True),
    "qwen3-4b": Shape(Qwen3Config, 36, 2560, 32, 8, 128, 9728, 151936, tied=True),
    "llama-3.2-1b": Shape(LlamaConfig, 16, 2048, 32, 8, 64, 8192, 128256, tied=True),
    "llama-3.1-8b": Shape(LlamaConfig, 32, 4096, 32, 8, 128, 14336, 128256, tied=False),
    "needle-like": Shape(LlamaConfig, 8, 128, 4, 2, 32, 384, 4096, tied=True),
}


def shape_named(name: str) -> Shape:
    """Raises InputError where there is no such shape."""
    if name not in SHAPES:
        raise InputError(f"shape {name!r} is unknown; known: {', '.join(SHAPES)}")
    return SHAPES[name]


def random_model(shape: Shape, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """A model of `shape` with seeded random weights, on `device`, in evaluation mode, with SDPA attention."""
    config = shape.config()
    config.dtype = dtype
    generator = torch.Generator(device).manual_seed(0)
    # Weights are drawn in place: the library's own initialisation takes minutes at these sizes.
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    model = model.to_empty(device=device)
    model.tie_weights()
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(std=0.02, generator=generator)
        elif "Norm" in type(module).__name__:
            module.weight.data.fill_(1.0)
    # The rotary tables are buffers, which a model on the meta device does not have; they are made from the config.
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(device)
    return model.eval()
