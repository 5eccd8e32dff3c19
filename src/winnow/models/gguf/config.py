"""A transformers configuration from the header of a GGUF file.

The plain keys go through transformers' own table. What its loader drops or guesses is read here: head size, rope
scalings, windows, soft caps, the scale of attention, biases. A key that is not understood is refused by name.
"""

import math
from typing import Any

from transformers import AutoConfig, PreTrainedConfig
from transformers.integrations import GGUF_CONFIG_DEFAULTS_MAPPING, GGUF_CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from winnow.errors import ModelError, UnsupportedModelError
from winnow.models.gguf.architectures import ARCHITECTURES, OWN, TABLES, Settings, plain
from winnow.models.gguf.fields import Fields
from winnow.models.gguf.header import Header
from winnow.models.gguf.tokenizer import special_ids

_READ_HERE = (
    "vocab_size",
    "attention.key_length",
    "attention.head_count_kv",
    "attention.sliding_window",
    "sliding_window",
)
# Keys that a file may state only with a value that changes nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.sliding_window": (0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "expert_count": (0,),
    "expert_gating_func": (0, 1),  # none stated, softmax
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_used_count": (0,),
    "logit_scale": (0.0, 1.0),
    "pooling_type": (0,),
    "residual_scale": (0.0, 1.0),
    "use_parallel_residual": (False,),
}


def config_of(header: Header) -> PreTrainedConfig:
    """The configuration of the model in a GGUF file.

    Raises:
        UnsupportedModelError: an architecture, rope scaling or setting that Winnow does not know; names it.
        ModelError: a value that is missing, of the wrong type, or contradicts the tensors.
    """
    fields = Fields(header)
    kind = header.metadata.get("general.type", "model")
    if kind != "model":
        fields.refuse(f"is a file of type {kind!r}, not a model", "give the file of the language model")
    if header.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedModelError(
            f"{fields.name}: the architecture {header.architecture!r} of a GGUF file is not supported; "
            f"supported are {known}: use the model's Hugging Face directory"
        )
    settings = _settings(fields)
    fields.finish()
    try:
        return AutoConfig.for_model(ARCHITECTURES[header.architecture], **settings)
    except Exception as error:  # transformers' validation raises its own and Python's classes
        reason = " ".join(str(error).split())
        raise ModelError(f"{fields.name}: its configuration is refused by transformers: {reason[:300]}") from None


def _settings(fields: Fields) -> Settings:
    architecture = fields.header.architecture
    table_name = TABLES.get(architecture, architecture)
    settings: Settings = dict(GGUF_CONFIG_DEFAULTS_MAPPING.get(table_name, {}))
    table: Any = GGUF_CONFIG_MAPPING[table_name]
    for key, name in table.items():
        if name is not None and not key.startswith("rope.") and key not in _READ_HERE:
            settings[name] = fields.number(key) if key.endswith("epsilon") else fields.integer(key)
    heads = settings["num_attention_heads"]
    settings["num_key_value_heads"] = fields.integer("attention.head_count_kv", heads)
    settings |= _head_size(fields, settings) | _size(fields, settings) | _biases(fields)
    settings |= OWN.get(architecture, plain)(fields, settings)
    scale = (settings.get("query_pre_attn_scalar") or settings["head_dim"]) ** -0.5
    stated_scale = fields.number("attention.scale", scale)
    if not math.isclose(stated_scale, scale, rel_tol=1e-5):
        fields.refuse(f"attention.scale = {stated_scale:g} is not supported; {scale:g} is what the architecture has")
    for key, accepted in _NEUTRAL.items():
        if fields.prefix + key in fields.unread:
            fields.only(key, *accepted)
    fields.stated("tensor_data_layout")  # of the file it was converted from
    settings["architectures"] = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[ARCHITECTURES[architecture]]]
    return settings | special_ids(fields.header)


def _head_size(fields: Fields, settings: Settings) -> Settings:
    hidden, heads = settings["hidden_size"], settings["num_attention_heads"]
    stated = fields.integer("attention.key_length", None)
    if stated is None and hidden % heads:
        fields.damaged(f"embedding_length = {hidden} is no multiple of attention.head_count = {heads}")
    if heads % settings["num_key_value_heads"]:
        fields.damaged(f"head_count = {heads} is no multiple of head_count_kv = {settings['num_key_value_heads']}")
    head_dim = stated or hidden // heads
    if head_dim % 2:
        fields.damaged(f"attention.key_length = {head_dim} is odd")
    for key in ("attention.value_length", "attention.key_length_swa", "attention.value_length_swa"):
        value = fields.integer(key, head_dim)
        if value != head_dim:
            fields.refuse(f"{key} = {value} beside attention.key_length = {head_dim} is not supported")
    return {"head_dim": head_dim}


def _size(fields: Fields, settings: Settings) -> Settings:
    """The vocabulary is the embedding's rows; layers and width must be those of the tensors."""
    tensors = fields.header.tensors
    if "token_embd.weight" not in tensors:
        fields.damaged("token_embd.weight is missing, so it holds no language model")
    shape = tensors["token_embd.weight"].shape
    if len(shape) != 2 or shape[1] != settings["hidden_size"]:
        fields.damaged(f"token_embd.weight is {list(shape)}, embedding_length {settings['hidden_size']}")
    vocabulary = fields.integer("vocab_size", shape[0])
    tokens = fields.header.metadata.get("tokenizer.ggml.tokens", ())
    if vocabulary != shape[0] or len(tokens) > shape[0]:
        fields.damaged(f"token_embd.weight has {shape[0]:,} rows for a vocabulary of {max(vocabulary, len(tokens)):,}")
    blocks = {name.split(".")[1] for name in tensors if name.startswith("blk.")}
    layers = settings["num_hidden_layers"]
    if len(blocks) != layers or blocks != {str(block) for block in range(len(blocks))}:
        fields.damaged(f"block_count is {layers:,}, but it has the tensors of {len(blocks):,} layers")
    return {"vocab_size": shape[0], "tie_word_embeddings": "output.weight" not in tensors}


def _biases(fields: Fields) -> Settings:
    """Biases that a family has only where its configuration says so; half of them is what no configuration can say."""
    if fields.header.architecture not in ("llama", "qwen3", "qwen3moe", "gemma2", "gemma3"):
        return {}
    found: Settings = {}
    for setting, parts in {
        "attention_bias": ("attn_q", "attn_k", "attn_v", "attn_output"),
        "mlp_bias": ("ffn_gate", "ffn_up", "ffn_down"),
    }.items():
        present = [part for part in parts if f"blk.0.{part}.bias" in fields.header.tensors]
        if present and (len(present) < len(parts) or (setting == "mlp_bias" and fields.header.architecture != "llama")):
            fields.refuse(f"biases of {', '.join(present)} alone are not supported")
        if present:
            found[setting] = True
    return found
