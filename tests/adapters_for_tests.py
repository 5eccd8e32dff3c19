"""A LoRA adapter of random weights for the tiny model."""

import json
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model

from tiny import tiny_model
from winnow.runtime.adapters import fingerprint


def save_adapter(directory: Path, plan: str | None = None) -> Path:
    """A plain PEFT adapter of random weights, and what Winnow says about it if a plan is given."""
    adapted = get_peft_model(tiny_model(), LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear"))
    torch.manual_seed(3)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(std=0.1)
    adapted.save_pretrained(directory, save_embedding_layers=False)
    if plan is not None:
        base = {"name": "tiny", "fingerprint": fingerprint(tiny_model())}
        (directory / "winnow.json").write_text(json.dumps({"plan": plan, "base": base}), encoding="utf-8")
    return directory
