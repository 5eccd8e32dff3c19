"""What a training run of retaining heads leaves behind."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from winnow.learn.directory import remove_checkpoints
from winnow.learn.heads_recipe import HeadsRecipe
from winnow.learn.saving import metadata, write_metadata
from winnow.plan import Plan
from winnow.policies.keep.locret import Locret
from winnow.runtime.heads import HeadsConfig, RetainingHeads

LIBRARIES = ("torch", "transformers")


def record_of(config: HeadsConfig, recipe: HeadsRecipe, data: dict[str, Any]) -> dict[str, Any]:
    """The record in `winnow.json`, without a result: the run goes on."""
    base = {"name": config.base, "fingerprint": config.fingerprint}
    return metadata(Plan(keep=Locret()), config.layers, base, recipe, data, libraries=LIBRARIES)


def save_heads(out: Path, heads: RetainingHeads, record: dict[str, Any], dtype: torch.dtype) -> None:
    """Write the heads, in `dtype`, the record and a model card; the checkpoints are not needed any more."""
    done = {name: record[name] for name in ("recipe", "data", "result")}
    config = dataclasses.replace(heads.config, **done)
    RetainingHeads(config, heads.first, heads.second).to(torch.device("cpu"), dtype).save(out)
    (out / "README.md").write_text(model_card(config, record), encoding="utf-8")
    write_metadata(out, record)
    remove_checkpoints(out)


def model_card(config: HeadsConfig, record: dict[str, Any]) -> str:
    """A Hugging Face model card: what it is, how to use it, how it was made."""
    data, result = record["data"], record["result"]
    held_out = result["held_out"]
    rows: dict[str, Any] = {
        "shape": f"{config.layers} layers, {config.inputs} -> {config.width} -> {config.kv_heads}, {config.activation}",
        "data": f"{data['file']}, {data['samples']:,} samples",
        "tokens read": f"{result['tokens']:,}",
        "loss, first and last": f"{result['loss_first']:.4f}, {result['loss_last']:.4f}",
        "overlap of the best tenth, last": f"{result['overlap_last']:.1%}",
        **({"held out": f"loss {held_out['loss']:.4f}, overlap {held_out['overlap']:.1%}"} if held_out else {}),
        **record["recipe"],
        **{f"{name} version": value for name, value in record["versions"].items()},
    }
    table = "\n".join(f"| {name.replace('_', ' ')} | {value} |" for name, value in rows.items())
    return f"""---
base_model: {config.base}
tags:
- winnow
- locret
---

# Retaining heads for {config.base}

Small networks, one per layer, that say of every token how much later ones will attend to it, so that a cache of fixed
size can keep what matters (Locret, arXiv:2410.01805). They fit this base model alone and are refused for others.

```python
from winnow import LLM

llm = LLM("{config.base}", heads="DIRECTORY")
print(llm.generate("...", plan="locret(budget=1024)")[0].text)
```

| | |
|---|---|
{table}
"""
