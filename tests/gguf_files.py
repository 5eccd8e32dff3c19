"""Small GGUF files for the tests, written with the `gguf` package."""

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quantize
from transformers.convert_slow_tokenizer import bytes_to_unicode

# <s>, </s> and every byte, then tokens that merges make: a byte-level vocabulary that can spell any text.
BYTES = list(bytes_to_unicode().values())
MERGES = ["Ġ Ġ", "ĠĠ ĠĠ", "t h", "th e", "Ġ the", "1 2", "12 3", "Ċ Ċ"]
TOKENS = ["<s>", "</s>", *BYTES, *(merge.replace(" ", "") for merge in MERGES)]
KINDS = [TokenType.CONTROL] * 2 + [TokenType.NORMAL] * (len(TOKENS) - 2)
HIDDEN, HEADS, KV_HEADS, FFN, LAYERS, POSITIONS = 32, 4, 2, 48, 2, 512
WIDTH = 64  # of write_llama's FFN: a multiple of a block of 32, as FFN is not
Q4_1, Q8_0 = GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0


def architecture_keys(architecture: str) -> dict[str, Any]:
    keys = {
        "block_count": LAYERS,
        "context_length": POSITIONS,
        "embedding_length": HIDDEN,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    }
    return {f"{architecture}.{key}": value for key, value in keys.items()}


def tokenizer_keys(**changed: Any) -> dict[str, Any]:
    """Keys after `tokenizer.ggml.`; one that is None is left out."""
    keys = {"model": "gpt2", "pre": "smollm", "tokens": TOKENS, "token_type": KINDS, "merges": MERGES}
    keys |= {"bos_token_id": 0, "eos_token_id": 1} | changed
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def write_gguf(
    path: Path,
    architecture: str = "llama",
    keys: dict[str, Any] | None = None,
    tensors: dict[str, Any] | None = None,
) -> Path:
    """A file of `architecture`: LAYERS layers of which only the first norm is there, an embedding, a tokenizer.

    keys: added to what a file has, or in its place; None takes a key away. tensors: added, float32 or float16, or
    (as stored, type); None takes one away.
    """
    writer = GGUFWriter(path, architecture)
    for key, value in (architecture_keys(architecture) | tokenizer_keys() | (keys or {})).items():
        if value is not None:
            add_key(writer, key, value)
    norms = {f"blk.{layer}.attn_norm.weight": np.ones(HIDDEN, np.float32) for layer in range(LAYERS)}
    embedding = {"token_embd.weight": np.zeros((len(TOKENS), HIDDEN), np.float32)}
    for name, values in (embedding | norms | (tensors or {})).items():
        if values is not None:
            data, type = values if isinstance(values, tuple) else (values, None)
            writer.add_tensor(name, data, raw_dtype=type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_llama(path: Path) -> Path:
    """A whole Llama with tied embeddings: Q8_0 and, but for its values, which are as they are, Q4_1."""
    rng = np.random.default_rng(0)
    writer = GGUFWriter(path, "llama")
    for key, value in (architecture_keys("llama") | tokenizer_keys()).items():
        add_key(writer, key, WIDTH if key == "llama.feed_forward_length" else value)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    embedding = rng.normal(size=(len(TOKENS), HIDDEN)).astype(np.float32)
    writer.add_tensor("token_embd.weight", quantize(embedding, Q8_0), raw_dtype=Q8_0)
    small = HIDDEN // HEADS * KV_HEADS
    shapes = {"attn_q": (HIDDEN, HIDDEN), "attn_k": (small, HIDDEN), "attn_v": (small, HIDDEN)}
    shapes |= {"attn_output": (HIDDEN, HIDDEN)}
    shapes |= {"ffn_gate": (WIDTH, HIDDEN), "ffn_up": (WIDTH, HIDDEN), "ffn_down": (HIDDEN, WIDTH)}
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(HIDDEN, np.float32))
        for name, shape in shapes.items():
            values = 0.1 * rng.normal(size=shape).astype(np.float32)
            stored = {"data": values.astype(np.float16)}
            if name != "attn_v":
                stored = {"data": quantize(values.astype(np.float32), Q4_1), "raw_dtype": Q4_1}
            writer.add_tensor(f"blk.{layer}.{name}.weight", stored["data"], raw_dtype=stored.get("raw_dtype"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_key(writer: GGUFWriter, key: str, value: Any) -> None:
    """With the type that llama.cpp's conversion scripts give it."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value) if value >= 0 else writer.add_int32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
