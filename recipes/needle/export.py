"""Write a checkpoint as a normal `save_pretrained` directory: safetensors, tokenizer, chat template."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from .config import ModelConfig
from .model import build_model
from .train import latest


def load(run: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """The model of the newest checkpoint in float32, and its tokenizer."""
    state = latest(run)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(run / "tokenizer")
    model = build_model(ModelConfig(**state["config"]), (tokenizer.eos_token_id, tokenizer.bos_token_id))
    model.load_state_dict(state["model"])
    return model.eval(), tokenizer


def export(run: Path, target: Path) -> None:
    """Save the newest checkpoint of `run` to `target` in bfloat16."""
    model, tokenizer = load(run)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.bos_token_id],
        pad_token_id=tokenizer.pad_token_id,
        do_sample=False,
    )
    model.to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)
    for path in target.iterdir():
        path.chmod(0o644)  # safetensors writes files that only their owner can read
