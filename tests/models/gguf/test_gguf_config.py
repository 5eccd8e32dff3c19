"""A configuration from a GGUF header equals the transformers configuration that the file stands for, or is refused."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from gguf_files import FFN, HEADS, HIDDEN, KV_HEADS, LAYERS, POSITIONS, TOKENS, write_gguf
from winnow.errors import ModelError, UnsupportedModelError
from winnow.models.gguf.architectures import ARCHITECTURES
from winnow.models.gguf.config import config_of
from winnow.models.gguf.header import read_header
from winnow.runtime.families import FAMILIES, check_config

COMMON: dict[str, Any] = {
    "vocab_size": len(TOKENS),
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": POSITIONS,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
WIDTH = HIDDEN // HEADS  # of a head, where nothing else is stated
WINDOWED, FULL = "sliding_attention", "full_attention"


def rope(rope_type: str = "default", theta: float = 10000.0, **more: Any) -> dict[str, Any]:
    return {"rope_type": rope_type, "rope_theta": theta, **more}


def build(tmp_path, architecture: str, keys: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None):
    full = {f"{architecture}.{key}": value for key, value in (keys or {}).items()}
    return config_of(read_header(write_gguf(tmp_path / "m.gguf", architecture, full, tensors)))


def expected(architecture: str, **settings: Any) -> dict[str, Any]:
    """What transformers' own class makes of these settings; a head size that is None is the class's own."""
    merged = copy.deepcopy(COMMON | {"head_dim": WIDTH, "rope_parameters": rope()} | settings)
    return comparable(AutoConfig.for_model(ARCHITECTURES[architecture], **merged))


def comparable(config) -> dict[str, Any]:
    return {key: value for key, value in config.to_dict().items() if key != "architectures"}


LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128}
YARN_BUILT = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
SHORT = np.array([1.0, 1.1, 1.5, 2.0], np.float32)
LONG = np.array([1.0, 1.5, 4.0, 9.5], np.float32)
FACTORS = {"rope_factors_short.weight": SHORT, "rope_factors_long.weight": LONG}
LONGROPE = {"rope.scaling.original_context_length": 128, "rope.scaling.attn_factor": 1.25}
LONGROPE_BUILT = rope(
    "longrope",
    long_factor=LONG.tolist(),
    short_factor=SHORT.tolist(),
    original_max_position_embeddings=128,
    attention_factor=1.25,
)
GEMMA2 = {"attention.key_length": 16, "attention.value_length": 16, "attention.sliding_window": 8}
GEMMA2_BUILT = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8, "layer_types": [WINDOWED, FULL]}
GEMMA3 = GEMMA2 | {"rope.freq_base": 1e6}
GEMMA3_ROPE = {FULL: rope(theta=1e6), WINDOWED: rope()}
GEMMA3_BUILT = GEMMA2_BUILT | {"layer_types": [WINDOWED, WINDOWED], "rope_parameters": GEMMA3_ROPE}
MOE = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 24, "attention.key_length": 16}
MOE_BUILT = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16}
OSS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": FFN, "attention.sliding_window": 8}
OSS_BUILT = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8, "layer_types": [WINDOWED, FULL]}

REBUILT: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {}, {}),
    "head size of key_length": ("llama", {"attention.key_length": 16}, {}, {"head_dim": 16}),
    "head size beside its rope": (
        "llama",
        {"attention.key_length": 16, "attention.value_length": 16, "rope.dimension_count": 16},
        {},
        {"head_dim": 16},
    ),
    "one number per layer": ("llama", {"attention.head_count": [HEADS] * LAYERS}, {}, {}),
    "no key-value heads stated": ("llama", {"attention.head_count_kv": None}, {}, {"num_key_value_heads": HEADS}),
    "base": ("llama", {"rope.freq_base": 5e5}, {}, {"rope_parameters": rope(theta=5e5)}),
    "untied": ("llama", {}, {"output.weight": np.zeros((4, HIDDEN), np.float32)}, {"tie_word_embeddings": False}),
    "biases": (
        "llama",
        {},
        {f"blk.0.attn_{part}.bias": np.zeros(4, np.float32) for part in ("q", "k", "v", "output")},
        {"attention_bias": True},
    ),
    "scaling none": ("llama", LINEAR | {"rope.scaling.type": "none"}, {}, {}),
    "scaling linear by 1": ("llama", LINEAR | {"rope.scaling.factor": 1.0}, {}, {}),
    "linear": ("llama", LINEAR, {}, {"rope_parameters": rope("linear", factor=4.0)}),
    "linear, the old key": ("llama", {"rope.scale_linear": 2.0}, {}, {"rope_parameters": rope("linear", factor=2.0)}),
    "yarn": ("qwen2", YARN, {}, {"rope_parameters": rope(**YARN_BUILT)}),
    "yarn's ramp": (
        "qwen3",
        YARN | {"rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_beta_slow": 2.0},
        {},
        {"rope_parameters": rope(**YARN_BUILT, beta_fast=16.0, beta_slow=2.0)},
    ),
    "yarn's attention": (
        "llama",
        YARN | {"rope.scaling.yarn_attn_factor": 1.5, "rope.scaling.finetuned": True},
        {},
        {"rope_parameters": rope(**YARN_BUILT, attention_factor=1.5)},
    ),
    "yarn's attention, a factor more": (
        "llama",
        YARN | {"rope.scaling.attn_factor": 0.5},
        {},
        {"rope_parameters": rope(**YARN_BUILT, attention_factor=0.5 * (0.1 * math.log(4) + 1))},
    ),
    "longrope": (
        "phi3",
        LONGROPE,
        FACTORS,
        {"rope_parameters": LONGROPE_BUILT, "original_max_position_embeddings": 128},
    ),
    "longrope of llama": (
        "llama",
        LONGROPE | {"rope.scaling.type": "longrope"},
        FACTORS,
        {"rope_parameters": LONGROPE_BUILT},
    ),
    "rope factors of 1": ("llama", {}, {"rope_freqs.weight": np.ones(4, np.float32)}, {}),
    "phi3": (
        "phi3",
        {"attention.sliding_window": 63, "rope.scaling.original_context_length": POSITIONS},
        {},
        {"sliding_window": 63, "original_max_position_embeddings": POSITIONS},
    ),
    "phi3, a part of the head rotated": (
        "phi3",
        {"rope.dimension_count": 6, "attention.sliding_window": 0},
        {},
        {"rope_parameters": rope(partial_rotary_factor=0.75), "original_max_position_embeddings": POSITIONS},
    ),
    "qwen3": ("qwen3", {"attention.key_length": 16}, {}, {"head_dim": 16}),
    "qwen3moe": ("qwen3moe", MOE, {}, MOE_BUILT | {"norm_topk_prob": True}),
    "gemma2": ("gemma2", GEMMA2, {}, GEMMA2_BUILT),
    "gemma2's caps": (
        "gemma2",
        GEMMA2 | {"attn_logit_softcapping": 20.0, "final_logit_softcapping": 10.0},
        {},
        GEMMA2_BUILT | {"attn_logit_softcapping": 20.0, "final_logit_softcapping": 10.0},
    ),
    "gemma3": ("gemma3", GEMMA3, {}, GEMMA3_BUILT),
    "gemma3's pattern, a count": (
        "gemma3",
        GEMMA3 | {"attention.sliding_window_pattern": 2},
        {},
        GEMMA3_BUILT | {"layer_types": [WINDOWED, FULL]},
    ),
    "gemma3's pattern, flags": (
        "gemma3",
        GEMMA3 | {"attention.sliding_window_pattern": [False, True]},
        {},
        GEMMA3_BUILT | {"layer_types": [FULL, WINDOWED]},
    ),
    "gemma3 without windows": (
        "gemma3",
        GEMMA3 | {"attention.sliding_window": None},
        {},
        GEMMA3_BUILT | {"layer_types": [FULL, FULL], "sliding_window": None},
    ),
    "gemma3's two bases and its scaling": (
        "gemma3",
        GEMMA3 | LINEAR | {"rope.freq_base_swa": 5000.0, "final_logit_softcapping": 7.0},
        {},
        GEMMA3_BUILT
        | {"final_logit_softcapping": 7.0}
        | {"rope_parameters": {FULL: rope("linear", 1e6, factor=4.0), WINDOWED: rope(theta=5000.0)}},
    ),
    "gpt-oss": (
        "gpt-oss",
        OSS | YARN | {"attention.key_length": 16},
        {},
        OSS_BUILT | {"head_dim": 16, "rope_parameters": rope(**YARN_BUILT, truncate=False)},
    ),
}


@pytest.mark.parametrize("case", REBUILT)
def test_a_file_is_the_transformers_configuration_it_stands_for(tmp_path, case):
    architecture, keys, tensors, settings = REBUILT[case]
    config = build(tmp_path, architecture, keys, tensors)
    wanted = expected(architecture, **settings)
    if architecture == "phi3":  # has no head size of its own, and states the part that is rotated
        wanted["rope_parameters"].setdefault("partial_rotary_factor", 1.0)
    assert comparable(config) == wanted
    check_config(config, "m.gguf")


def test_every_architecture_is_one_that_winnow_drives():
    assert set(ARCHITECTURES.values()) <= set(FAMILIES)


def llama3_factors(width: int, theta: float, factor: float, low: float, high: float, original: int) -> np.ndarray:
    """What llama.cpp's conversion stores for a Llama 3 scaling, restated from its definition: what divides the base's
    frequencies."""
    factors = []
    for frequency in 1.0 / theta ** (np.arange(0, width, 2) / width):
        turns = original * frequency / (2 * math.pi)  # in the original context
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


@pytest.mark.parametrize(("factor", "width"), [(8.0, 128), (32.0, 64), (8.0, 8)])
def test_llama_3_factors_become_the_scaling_they_were_made_of(tmp_path, factor, width):
    tensors = {"rope_freqs.weight": llama3_factors(width, 5e5, factor, 1.0, 4.0, 8192)}
    config = build(tmp_path, "llama", {"rope.freq_base": 5e5, "attention.key_length": width}, tensors)
    assert config.rope_parameters["rope_type"] == "llama3"
    model = AutoModelForCausalLM.from_config(config)
    found = model.model.rotary_emb.inv_freq.double()
    base = 5e5 ** -(torch.arange(0, width, 2).double() / width)
    torch.testing.assert_close(found, base / torch.from_numpy(tensors["rope_freqs.weight"]).double(), rtol=2e-6, atol=0)
    if width > 8:  # with few frequencies several scalings are the same
        assert config.rope_parameters == rope(
            "llama3",
            5e5,
            factor=factor,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=8192,
        )


UNSUPPORTED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "a rope type": ("llama", {"rope.scaling.type": "ntk"}, {}, "rope.scaling.type = 'ntk' is unknown"),
    "factors of no llama 3": ("llama", {}, {"rope_freqs.weight": LONG}, "not those of a Llama 3 scaling"),
    "factors elsewhere": (
        "qwen2",
        {},
        {"rope_freqs.weight": LONG},
        "the tensor rope_freqs.weight with architecture qwen2",
    ),
    "half a longrope": ("phi3", LONGROPE, {"rope_factors_long.weight": LONG}, "['rope_factors_long.weight']"),
    "longrope elsewhere": ("qwen2", LONGROPE, FACTORS, "is not understood"),
    "longrope without its attention": ("phi3", LONGROPE | {"rope.scaling.attn_factor": None}, FACTORS, "attn_factor"),
    "longrope without factors": ("llama", {"rope.scaling.type": "longrope"}, {}, "'longrope' with the tensors []"),
    "yarn of phi3": ("phi3", YARN, {}, "'yarn' is not supported for phi3"),
    "yarn extrapolating": ("llama", YARN | {"rope.scaling.yarn_ext_factor": 0.5}, {}, "yarn_ext_factor = 0.5"),
    "yarn of DeepSeek": ("llama", YARN | {"rope.scaling.yarn_log_multiplier": 0.1}, {}, "yarn_log_multiplier = 0.1"),
    "yarn's ramp without yarn": ("llama", {"rope.scaling.yarn_beta_fast": 8.0}, {}, "yarn_beta_fast"),
    "attention scaled without yarn": ("llama", LINEAR | {"rope.scaling.attn_factor": 1.5}, {}, "attn_factor = 1.5"),
    "an original context without a scaling": ("llama", {"rope.scaling.original_context_length": 8}, {}, "= 8 without"),
    "alpha": ("llama", {"rope.scaling.alpha": 1000.0}, {}, "rope.scaling.alpha = 1000"),
    "sections": ("qwen2", {"rope.dimension_sections": [1, 1, 2, 0]}, {}, "rope.dimension_sections = array"),
    "an unknown rope key": ("llama", {"rope.spiral": 2.0}, {}, "llama.rope.spiral = 2.0 is not understood"),
    "an unknown key": ("llama", {"attention.q_lora_rank": 8}, {}, "llama.attention.q_lora_rank = 8"),
    "experts of llama": ("llama", {"expert_count": 8, "expert_used_count": 2}, {}, "llama.expert_count = 8"),
    "half a head rotated": ("llama", {"rope.dimension_count": 4}, {}, "rope.dimension_count = 4 of 8"),
    "more than a head rotated": ("phi3", {"rope.dimension_count": 16}, {}, "rope.dimension_count = 16 of 8"),
    "values of another width": ("llama", {"attention.value_length": 4}, {}, "attention.value_length = 4 beside"),
    "phi3's own head size": ("phi3", {"attention.key_length": 16}, {}, "key_length = 16 is not supported for phi3"),
    "layers that differ": ("llama", {"attention.head_count": [4, 2]}, {}, "attention.head_count differs from layer"),
    "a window of llama": ("llama", {"attention.sliding_window": 8}, {}, "llama.attention.sliding_window = 8"),
    "an attention scale": ("llama", {"attention.scale": 0.1}, {}, "attention.scale = 0.1"),
    "a residual scale": ("llama", {"residual_scale": 0.2}, {}, "llama.residual_scale = 0.2"),
    "a cap of qwen2": ("qwen2", {"final_logit_softcapping": 30.0}, {}, "final_logit_softcapping = 30.0"),
    "two bases of gemma2": ("gemma2", GEMMA2 | {"rope.freq_base_swa": 5.0}, {}, "rope.freq_base_swa = 5.0"),
    "half the biases": ("llama", {}, {"blk.0.attn_q.bias": LONG}, "biases of attn_q alone"),
    "attention both ways": ("llama", {"attention.causal": False}, {}, "llama.attention.causal = False"),
}
DAMAGED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "no layers": ("llama", {"block_count": None}, {}, "llama.block_count is missing"),
    "0 layers": ("llama", {"block_count": 0}, {}, "llama.block_count is 0"),
    "layers as text": ("llama", {"block_count": "2"}, {}, "llama.block_count is '2', not an integer"),
    "true layers": ("llama", {"block_count": True}, {}, "llama.block_count is True"),
    "layers without tensors": ("llama", {"block_count": 2**30}, {}, "has the tensors of 2 layers"),
    "a width that is no number": ("llama", {"attention.layer_norm_rms_epsilon": math.nan}, {}, "is nan, not a number"),
    "an embedding of another width": ("llama", {"embedding_length": 64}, {}, "token_embd.weight is"),
    "a vocabulary of another size": ("llama", {"vocab_size": 7}, {}, f"has {len(TOKENS)} rows"),
    "heads that do not divide": (
        "llama",
        {"attention.head_count": 5},
        {},
        "is no multiple of attention.head_count = 5",
    ),
    "key-value heads that do not divide": ("llama", {"attention.head_count_kv": 3}, {}, "no multiple of head_count_kv"),
    "factors of another width": ("llama", {}, {"rope_freqs.weight": np.ones(3, np.float32)}, "is [3] F32, not [4] F32"),
    "factors in halves": ("llama", {}, {"rope_freqs.weight": np.ones(4, np.float16)}, "is [4] F16, not [4] F32"),
    "infinite factors": (
        "llama",
        {},
        {"rope_freqs.weight": np.full(4, np.inf, np.float32)},
        "factors that are not positive numbers",
    ),
    "a base below 0": ("llama", {"rope.freq_base": -1.0}, {}, "rope.freq_base is -1.0, not a number above 0"),
    "a pattern of three": ("gemma3", GEMMA3 | {"attention.sliding_window_pattern": [True] * 3}, {}, "list of 2 flags"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_a_configuration_cannot_say_is_refused_by_name(tmp_path, case):
    architecture, keys, tensors, message = UNSUPPORTED[case]
    with pytest.raises(UnsupportedModelError) as caught:
        build(tmp_path, architecture, keys, tensors)
    assert message in str(caught.value)
    assert str(caught.value).startswith("m.gguf: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", DAMAGED)
def test_values_that_are_missing_or_wrong_are_one_line(tmp_path, case):
    architecture, keys, tensors, message = DAMAGED[case]
    with pytest.raises(ModelError) as caught:
        build(tmp_path, architecture, keys, tensors)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, UnsupportedModelError)


def test_a_file_that_holds_no_language_model_is_refused(tmp_path):
    with pytest.raises(UnsupportedModelError, match="is a file of type 'mmproj', not a model"):
        config_of(read_header(write_gguf(tmp_path / "m.gguf", keys={"general.type": "mmproj"})))
