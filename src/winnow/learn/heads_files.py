"""What a training run of retaining heads leaves behind, and what it writes to be able to go on."""

import dataclasses
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from winnow.errors import ModelError
from winnow.learn.directory import CHECKPOINT, COMPLETE, remove_checkpoints
from winnow.learn.heads_recipe import HeadsRecipe
from winnow.learn.learner import Learner
from winnow.learn.saving import metadata, write_metadata
from winnow.plan import Plan
from winnow.policies.keep.locret import Locret
from winnow.runtime.heads import HeadsConfig, RetainingHeads

STATE, LOG = "state.safetensors", "log.jsonl"
LIBRARIES = ("torch", "transformers")


@dataclass
class Journal:
    """Where a run is, and what it has told so far. tokens: read; pending: figures of the steps since the last line."""

    step: int = 0
    tokens: int = 0
    lines: list[dict[str, Any]] = field(default_factory=list)
    pending: list[dict[str, float]] = field(default_factory=list)

    def note(self, log: Path, line: dict[str, Any]) -> None:
        """Add a line to the log."""
        self.lines.append(line)
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self)) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Journal":
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def save_checkpoint(out: Path, learner: Learner, journal: Journal) -> None:
    """Write all that `load_checkpoint` needs, and delete older checkpoints; one that is cut short is never used."""
    place = out / f"{CHECKPOINT}{journal.step}"
    shutil.rmtree(place, ignore_errors=True)
    older = list(out.glob(f"{CHECKPOINT}*"))
    place.mkdir()
    save_file({name: each.cpu().contiguous() for name, each in learner.state().items()}, place / STATE)
    half = place / f"{COMPLETE}.part"
    journal.save(half)
    half.rename(place / COMPLETE)
    for path in older:
        shutil.rmtree(path)


def load_checkpoint(place: Path, learner: Learner) -> Journal:
    """Bring a learner to where a checkpoint was written. Raises ModelError where it is damaged."""
    try:
        learner.restore(load_file(place / STATE, device=str(learner.device)))
        return Journal.load(place / COMPLETE)
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, RuntimeError) as error:
        raise ModelError(f"{place} is damaged ({str(error)[:200]}); remove it, or start again") from error


def start_log(out: Path, journal: Journal) -> None:
    """The log as it was when the checkpoint was written."""
    (out / LOG).write_text("".join(json.dumps(line) + "\n" for line in journal.lines), encoding="utf-8")


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
