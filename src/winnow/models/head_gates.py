"""How much each KV head of a model needs of a text: a file of gates that names the model they were trained on."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winnow.errors import ModelError
from winnow.models.files import find_part, read_object

FILE = "head_gates.json"


@dataclass(frozen=True)
class HeadGates:
    """base, fingerprint: of the model that they were trained on. layers: per layer and KV head its gate, from 0 (the
    first tokens and a recent window do) to 1. recipe, data, result: how they were made, for people."""

    base: str
    fingerprint: str
    layers: list[list[float]]
    recipe: dict[str, Any] = dataclasses.field(default_factory=dict)
    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    result: dict[str, Any] = dataclasses.field(default_factory=dict)

    def save(self, directory: str | Path) -> None:
        """Write `head_gates.json`."""
        place = Path(directory)
        place.mkdir(parents=True, exist_ok=True)
        text = json.dumps(dataclasses.asdict(self), ensure_ascii=False)
        (place / FILE).write_text(text + "\n", encoding="utf-8")


def read_gates(directory: str | Path) -> HeadGates:
    """What `save` wrote, or bundled ones, by their model's name. Raises ModelError where there are none, or damaged."""
    path = find_part(directory, "gates", FILE) / FILE
    if not path.is_file():
        raise ModelError(f"{directory} holds no gates of heads: it needs {FILE}; winnow train duo writes it")
    try:
        found = HeadGates(**read_object(path))
        if len({len(layer) for layer in found.layers}) != 1 or not found.layers[0]:
            raise ValueError("layers have different numbers of heads, or none")
        if not all(isinstance(gate, int | float) and 0 <= gate <= 1 for layer in found.layers for gate in layer):
            raise ValueError("a gate is no number from 0 to 1")
    except (ModelError, ValueError, TypeError, LookupError) as error:
        raise ModelError(f"{path} is damaged ({error}); train the gates again") from error
    return found
