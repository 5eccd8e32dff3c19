"""What a run leaves behind: weights, `winnow.json`, which says what they are for, and a model card."""

import dataclasses
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

import winnow
from winnow.plan import Plan
from winnow.runtime.adapters import METADATA

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LIBRARIES = ("torch", "transformers", "peft", "accelerate")


@dataclass(frozen=True)
class Result:
    """What a run came to. tokens: read, again in every epoch; loss: nats per supervised token, of the first and the
    last log line; seconds: of the last part of a resumed run."""

    steps: int
    tokens: int
    loss_first: float
    loss_last: float
    seconds: float


def metadata(
    plan: Plan,
    layers: int,
    base: dict[str, str],
    recipe: "DataclassInstance",
    data: dict[str, Any],
    libraries: Sequence[str] = LIBRARIES,
) -> dict[str, Any]:
    """The record in `winnow.json`, without a result: the run goes on. libraries: whose versions it names."""
    return {
        "plan": str(plan),
        "layers": layers,
        "base": base,
        "recipe": dataclasses.asdict(recipe),
        "data": data,
        "versions": {
            "winnow": winnow.__version__,
            "python": platform.python_version(),
            **{name: version(name) for name in libraries},
        },
        "result": None,
    }


def write_metadata(out: Path, record: dict[str, Any]) -> None:
    (out / METADATA).write_text(json.dumps(record, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def save(out: Path, model: Any, tokenizer: PreTrainedTokenizerBase, record: dict[str, Any]) -> None:
    """Write the weights (a PeftModel's adapter, or a whole model with its tokenizer), the record and the model card."""
    if record["recipe"]["lora"] is None:
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)
    else:
        model.peft_config["default"].base_model_name_or_path = record["base"]["name"]
        model.save_pretrained(out, save_embedding_layers=False)
    write_metadata(out, record)
    (out / "README.md").write_text(model_card(record), encoding="utf-8")


def model_card(record: dict[str, Any]) -> str:
    """A Hugging Face model card: what it is, the plan it is for, how to load it, how it was made."""
    base, plan, data, result = record["base"]["name"], record["plan"], record["data"], record["result"]
    adapter = record["recipe"]["lora"] is not None
    what = "adapter" if adapter else "model"
    load = f'LLM("{base}", adapter="DIRECTORY")' if adapter else 'LLM("DIRECTORY")'
    rows: dict[str, Any] = {
        "plan": f"`{plan}`",
        "layers": record["layers"],
        "data": f"{data['file']}, {data['conversations']:,} conversations, {data['supervised']:,} supervised tokens",
        "steps": f"{result['steps']:,}",
        "tokens read": f"{result['tokens']:,}",
        "loss, first and last": f"{result['loss_first']:.4f}, {result['loss_last']:.4f} nats per supervised token",
        **{name: value for name, value in record["recipe"].items() if name not in ("lora", "steps")},
        **{f"LoRA {name}": value for name, value in (record["recipe"]["lora"] or {}).items()},
        **{f"{name} version": value for name, value in record["versions"].items()},
    }
    table = "\n".join(f"| {name.replace('_', ' ')} | {value} |" for name, value in rows.items())
    return f"""---
base_model: {base}
library_name: {"peft" if adapter else "transformers"}
pipeline_tag: text-generation
tags:
- winnow
- speed
{"- lora" if adapter else "- sft"}
---

# {base}, trained for `{plan}`

This {what} was trained to answer under this plan{_under(plan)}

```python
from winnow import LLM

llm = {load}
print(llm.chat([{{"role": "user", "content": "..."}}])[0].text)
```

| | |
|---|---|
{table}
"""


def _under(plan: str) -> str:
    if plan == "full":
        return ", the whole prompt in all layers."
    return """:
the prompt stops at a layer, and what is decoded goes through all of them (SPEED, arXiv:2605.06105).
Loaded with Winnow it runs under the plan by itself; plans that compute the prompt another way are refused, but for full
attention, to compare with. `winnow.json` says what it was trained for."""
