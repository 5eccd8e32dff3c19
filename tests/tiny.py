"""A tiny random Llama for the byte-level tokenizer, in memory and saved, for tests that need text."""

import functools
import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tokenizers_for_tests import byte_tokenizer

POSITIONS = 32768


def tiny_model() -> LlamaForCausalLM:
    """Random weights with a fixed seed."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=259,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


def save_tiny_model(directory: Path) -> Path:
    """A model directory like any other."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in _files().items():
        (directory / name).write_bytes(data)
    return directory


@functools.cache
def _files() -> dict[str, bytes]:
    """What transformers saves, by name."""
    with tempfile.TemporaryDirectory() as made:
        tiny_model().save_pretrained(made)
        byte_tokenizer().save_pretrained(made)
        return {path.name: path.read_bytes() for path in Path(made).iterdir()}
