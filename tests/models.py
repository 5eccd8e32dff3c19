"""Small random models of every supported family, built in memory, with what each one has of its own reached."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    Cohere2Config,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
WINDOW = 8  # far below the prompt length of the tests, so that sliding windows are reached
ROPE_WIDTH = 8  # head_dim 16: eight frequencies
LAYER_TYPES = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]


def _longrope(original: int) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + 0.1 * i for i in range(ROPE_WIDTH)],
        "long_factor": [2.0 + 0.7 * i for i in range(ROPE_WIDTH)],
        "original_max_position_embeddings": original,
        "factor": 512 / original,
    }


def _llama(**rope: Any) -> Callable[[], PretrainedConfig]:
    parameters = {"rope_theta": 10000.0, **rope}
    positions = 32 if rope.get("rope_type") == "dynamic" else SMALL["max_position_embeddings"]
    return lambda: LlamaConfig(**{**SMALL, "max_position_embeddings": positions}, rope_parameters=parameters)


CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**SMALL),
    "llama-llama3": _llama(
        rope_type="llama3",
        factor=4.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=32,
    ),
    "llama-yarn": _llama(rope_type="yarn", factor=4.0, original_max_position_embeddings=32),
    "llama-dynamic": _llama(rope_type="dynamic", factor=4.0),
    "mistral": lambda: MistralConfig(**SMALL, head_dim=32, sliding_window=WINDOW),
    "qwen2": lambda: Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2),
    "qwen3": lambda: Qwen3Config(**SMALL, head_dim=32),
    "qwen3_moe": lambda: Qwen3MoeConfig(
        **SMALL, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True
    ),
    "phi3": lambda: Phi3Config(**SMALL, sliding_window=WINDOW),
    "phi3-longrope-short": lambda: Phi3Config(
        **SMALL, original_max_position_embeddings=256, rope_parameters=_longrope(256)
    ),
    "phi3-longrope-long": lambda: Phi3Config(
        **SMALL, original_max_position_embeddings=16, rope_parameters=_longrope(16)
    ),
    "gemma2": lambda: Gemma2Config(
        **SMALL,
        head_dim=32,
        sliding_window=WINDOW,
        layer_types=LAYER_TYPES,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=5.0,
        query_pre_attn_scalar=20,
    ),
    "gemma3": lambda: Gemma3TextConfig(
        **SMALL, head_dim=16, sliding_window=WINDOW, layer_types=LAYER_TYPES, query_pre_attn_scalar=20
    ),
    "olmo2": lambda: Olmo2Config(**SMALL),
    "granite": lambda: GraniteConfig(
        **SMALL, embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.5, logits_scaling=4.0
    ),
    "cohere2": lambda: Cohere2Config(
        **SMALL, sliding_window=WINDOW, layer_types=LAYER_TYPES, logit_scale=0.5, tie_word_embeddings=True
    ),
    "smollm3": lambda: SmolLM3Config(**SMALL, no_rope_layers=[1, 1, 1, 0]),
    "smollm3-sliding": lambda: SmolLM3Config(
        **SMALL, no_rope_layers=[1, 1, 1, 0], use_sliding_window=True, sliding_window=WINDOW, layer_types=LAYER_TYPES
    ),
    "gpt_oss": lambda: GptOssConfig(
        **SMALL, head_dim=32, sliding_window=WINDOW, layer_types=LAYER_TYPES, num_local_experts=4, num_experts_per_tok=2
    ),
}

# Query and KV heads: 9 and 3 as SmolLM2 has them, no power of two; more KV heads than two; one for every query head.
HEADS: dict[str, Callable[[], PretrainedConfig]] = {
    f"llama-{q_heads}-{kv_heads}": functools.partial(
        LlamaConfig,
        **{
            **SMALL,
            "num_attention_heads": q_heads,
            "num_key_value_heads": kv_heads,
            "hidden_size": 16 * q_heads,
            "head_dim": 32,
        },
    )
    for q_heads, kv_heads in ((9, 3), (8, 4), (8, 8))
}


def _wide(name: str) -> PretrainedConfig:
    config = CONFIGS[name]()
    config.head_dim = 32
    return config


# With heads as wide as the kernels take them.
WIDE: dict[str, Callable[[], PretrainedConfig]] = {
    f"{name}-wide": functools.partial(_wide, name)
    for name in ("llama", "qwen2", "phi3", "gemma3", "olmo2", "granite", "smollm3-sliding", "cohere2", "qwen3_moe")
}


def small_model(name: str = "llama", device: str = "cpu", dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A random model with a fixed seed; norms and biases too, so that leaving one out shows."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config((CONFIGS | HEADS | WIDE)[name](), attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * (0.6 / parameter.shape[-1] ** 0.5 if parameter.dim() == 2 else 0.1))
            else:
                parameter.add_(noise * 0.1)
    return model.to(device=device, dtype=dtype).eval()


def stock_logits(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """The stock forward over the whole text: [len(ids), vocab] float32."""
    with torch.inference_mode():
        return model(torch.tensor([ids], device=model.device), use_cache=False).logits[0].float()
