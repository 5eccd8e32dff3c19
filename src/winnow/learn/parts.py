"""What a training of parts beside a model leaves behind: the record, and a model card."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.learn.directory import remove_checkpoints
from winnow.learn.run import Report
from winnow.learn.saving import write_metadata

LIBRARIES = ("torch", "transformers")


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
        held_out = result["held_out"] or {}
        rows: dict[str, Any] = {
            "shape": self.shape,
            "data": f"{data['file']}, {data['samples']:,} {self.items}",
            "tokens read": f"{result['tokens']:,}",
            "loss, first and last": f"{result['loss_first']:.4f}, {result['loss_last']:.4f}{self.unit}",
            **self.figures,
            **{f"held out, {name}": f"{value:.4f}" for name, value in held_out.items()},
            **record["recipe"],
            **{f"{name} version": value for name, value in record["versions"].items()},
        }
        table = "\n".join(f"| {name.replace('_', ' ')} | {value} |" for name, value in rows.items())
        return f"""---
base_model: {base}
tags:
- winnow
- {self.tag}
---

# {self.title} for {base}

{self.about}.
They fit this base model alone and are refused for others.

```python
from winnow import LLM

llm = LLM("{base}", {self.argument}="DIRECTORY")
print(llm.generate("...", plan="{self.plan or record["plan"]}")[0].text)
```

| | |
|---|---|
{table}
"""


def leave(out: Path, record: dict[str, Any], card: Card) -> Report:
    """Write the record and a model card; the checkpoints are not needed any more."""
    (out / "README.md").write_text(card.text(record), encoding="utf-8")
    write_metadata(out, record)
    remove_checkpoints(out)
    return Report.of(record, out)
