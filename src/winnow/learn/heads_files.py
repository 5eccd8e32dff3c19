"""What a training run of retaining heads leaves behind."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import torch

from winnow.learn.directory import remove_checkpoints
from winnow.learn.heads_recipe import HeadsRecipe
from winnow.learn.saving import metadata, write_metadata
from winnow.plan import Plan
from winnow.policies.keep.base import KeepPolicy
from winnow.policies.keep.kvzap import KVzap
from winnow.policies.keep.locret import Locret
from winnow.runtime.heads import HeadsConfig, RetainingHeads, Target

LIBRARIES = ("torch", "transformers")


class Use(NamedTuple):
    """What heads are for. keep: the policy that they were made for; plan: one of it; say: what they say of a token."""

    keep: KeepPolicy
    plan: str
    say: str


USES: dict[Target, Use] = {
    "logit": Use(
        Locret(),
        "locret(budget=1024)",
        "how much later ones will attend to it, so that a cache of fixed size\n"
        "can keep what matters (Locret, arXiv:2410.01805)",
    ),
    "repeat": Use(
        KVzap(),
        "kvzap(threshold=-6)",
        "how much the model would need it to repeat the text, so that a cache\n"
        "can keep what matters (KVzap, arXiv:2601.07891)",
    ),
}


def record_of(config: HeadsConfig, recipe: HeadsRecipe, data: dict[str, Any]) -> dict[str, Any]:
    """The record in `winnow.json`, without a result: the run goes on."""
    base = {"name": config.base, "fingerprint": config.fingerprint}
    return metadata(Plan(keep=USES[config.target].keep), config.layers, base, recipe, data, libraries=LIBRARIES)


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
    data, result, use = record["data"], record["result"], USES[config.target]
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
- {use.keep.name}
---

# Retaining heads for {config.base}

Small networks, one per layer, that say of every token {use.say}. They fit
this base model alone and are refused for others.

```python
from winnow import LLM

llm = LLM("{config.base}", heads="DIRECTORY")
print(llm.generate("...", plan="{use.plan}")[0].text)
```

| | |
|---|---|
{table}
"""
