"""What a run leaves behind: weights, and `winnow.json`, which says what they are for."""

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
from winnow.learn.cards import speed_card
from winnow.learn.teacher import LEARNER
from winnow.models.files import os_errors, replace_text
from winnow.plan import Plan
from winnow.runtime.adapters import METADATA

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LIBRARIES = ("torch", "transformers", "peft", "accelerate")


@dataclass(frozen=True)
class Result:
    """What a run came to. tokens: read, again in every epoch; loss: nats per supervised token, of the first and the
    last log line, the KL divergence where a teacher is learnt from; seconds: of the last part of a resumed run;
    peak_bytes: the most that its process had held, see `winnow.learn.peak`; held_out: figures of the last measurement,
    None: none."""

    steps: int
    tokens: int
    loss_first: float
    loss_last: float
    seconds: float
    peak_bytes: int | None
    held_out: dict[str, float] | None = None


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
    replace_text(out / METADATA, json.dumps(record, ensure_ascii=False, indent=2) + "\n")


def save(out: Path, model: Any, tokenizer: PreTrainedTokenizerBase, record: dict[str, Any]) -> None:
    """Write the weights (a PeftModel's adapter, or a whole model with its tokenizer), the record and the model card."""
    with os_errors(out):
        if record["recipe"]["lora"] is None:
            model.save_pretrained(out)
            tokenizer.save_pretrained(out)
        else:
            model.peft_config[LEARNER].base_model_name_or_path = record["base"]["name"]
            model.save_pretrained(out, save_embedding_layers=False, selected_adapters=[LEARNER])
    write_metadata(out, record)
    (out / "README.md").write_text(speed_card(record), encoding="utf-8")
