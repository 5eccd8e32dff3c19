"""Hugging Face model cards of what was trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ORIGIN = {"begin": "begun with", "teacher": "learnt from what is said, all layers computed, by"}


@dataclass(frozen=True)
class Card:
    """What a model card says of trained parts beside how they were made. about: what they are, without a full stop;
    argument: of `LLM`, that takes them; plan: to show, None: the record's; unit: of the loss; items: what the data is
    of; figures: of the result, by name."""

    title: str
    tag: str
    about: str
    argument: str
    shape: str
    figures: Mapping[str, str]
    plan: str | None = None
    unit: str = ""
    items: str = "samples"

    def text(self, record: dict[str, Any]) -> str:
        """A Hugging Face model card: what it is, how to use it, how it was made."""
        base, data, result = record["base"]["name"], record["data"], record["result"]
        adapter, held_out = record["base"].get("adapter"), result["held_out"] or {}
        beside, loaded = ("", "") if adapter is None else (f" with {adapter}", f'adapter="{adapter}", ')
        rows: dict[str, Any] = {
            "shape": self.shape,
            "data": f"{data['file']}, {data['samples']:,} {self.items}",
            "tokens read": f"{result['tokens']:,}",
            "loss, first and last": f"{result['loss_first']:.4f}, {result['loss_last']:.4f}{self.unit}",
            **self.figures,
            **{f"held out, {name}": f"{value:.4f}" for name, value in held_out.items()},
            **record["recipe"],
        }
        about = f"{self.about}.\nThey fit this base model{beside} alone and are refused for others."
        load = f'LLM("{base}", {loaded}{self.argument}="DIRECTORY")'
        use = f'llm.generate("...", plan="{self.plan or record["plan"]}")'
        return _text(record, (), [self.tag], f"{self.title} for {base}{beside}", about, load, use, rows)


def speed_card(record: dict[str, Any]) -> str:
    """Of a model or an adapter: what it is, the plan it is for, how to load it, how it was made."""
    base, plan, data, result = record["base"]["name"], record["plan"], record["data"], record["result"]
    adapter = record["recipe"]["lora"] is not None
    what, learnt = "adapter" if adapter else "model", "KL" if "teacher" in record else "loss"
    load = f'LLM("{base}", adapter="DIRECTORY")' if adapter else 'LLM("DIRECTORY")'
    rows: dict[str, Any] = {
        "plan": f"`{plan}`",
        "layers": record["layers"],
        **{what: record[name] for name, what in ORIGIN.items() if name in record},
        "data": f"{data['file']}, {data['conversations']:,} conversations, {data['supervised']:,} supervised tokens",
        **({"taught by the model without adapters": f"{count:,} of them"} if (count := data.get("by_base")) else {}),
        "steps": f"{result['steps']:,}",
        "tokens read": f"{result['tokens']:,}",
        f"{learnt}, first and last": f"{result['loss_first']:.4f}, {result['loss_last']:.4f} nats per supervised token",
        **{name: value for name, value in record["recipe"].items() if name not in ("lora", "steps")},
        **{f"LoRA {name}": value for name, value in (record["recipe"]["lora"] or {}).items()},
    }
    kind = (f"library_name: {'peft' if adapter else 'transformers'}", "pipeline_tag: text-generation")
    tags = ["speed", "lora" if adapter else "sft"]
    about = f"This {what} was trained to answer under this plan{_under(plan)}"
    use = 'llm.chat([{"role": "user", "content": "..."}])'
    return _text(record, kind, tags, f"{base}, trained for `{plan}`", about, load, use, rows)


def _text(
    record: dict[str, Any], kind: Sequence[str], tags: Sequence[str], title: str, about: str, load: str, use: str,
    rows: dict[str, Any],
) -> str:  # fmt: skip
    """kind: lines for the hub; load: what makes the LLM; use: what gives completions; rows: of a table, by name."""
    made = {**rows, **{f"{name} version": value for name, value in record["versions"].items()}}
    table = "\n".join(f"| {name.replace('_', ' ')} | {value} |" for name, value in made.items())
    head = "\n".join(
        (f"base_model: {record['base']['name']}", *kind, "tags:", *(f"- {tag}" for tag in ("winnow", *tags)))
    )
    return f"""---
{head}
---

# {title}

{about}

```python
from winnow import LLM

llm = {load}
print({use}[0].text)
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
