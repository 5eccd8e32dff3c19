"""Which pattern of MInference each query head of a model has: a file that names the model it was searched on."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from winnow.errors import ModelError
from winnow.models.files import read_object
from winnow.policies.prefill.minference import PATTERNS, Pattern
from winnow.runtime.adapters import base_name, dtype_hint, fingerprint

FILE = "head_patterns.json"


@dataclass(frozen=True)
class HeadPatterns:
    """base, fingerprint: of the model that they were searched on. layers: per layer and query head its pattern. shares:
    likewise, the share of the attention that it holds. data: what they were searched on, for people."""

    base: str
    fingerprint: str
    layers: list[list[Pattern]]
    shares: list[list[float]]
    data: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls, model: PreTrainedModel, layers: list[list[Pattern]], shares: list[list[float]], data: dict[str, Any]
    ) -> "HeadPatterns":
        """For a model as it is now."""
        return cls(base_name(model), fingerprint(model), layers, shares, data)

    def save(self, directory: str | Path) -> None:
        """Write `head_patterns.json`."""
        place = Path(directory)
        place.mkdir(parents=True, exist_ok=True)
        text = json.dumps(dataclasses.asdict(self), ensure_ascii=False)
        (place / FILE).write_text(text + "\n", encoding="utf-8")


def load_patterns(directory: str | Path, model: PreTrainedModel) -> HeadPatterns:
    """What `save` wrote. Raises ModelError where there is none, it is damaged, or it is another model's."""
    path = Path(directory) / FILE
    if not path.is_file():
        raise ModelError(f"{directory} holds no patterns of heads: it needs {FILE}; winnow diagnose patterns writes it")
    try:
        read = read_object(path)
        layers = [[Pattern(*each) for each in heads] for heads in read.pop("layers")]
        found = HeadPatterns(layers=layers, **read)
        for each in (each for heads in layers for each in heads):
            if each.kind not in PATTERNS or not (isinstance(each.first, int) and isinstance(each.second, int)):
                raise ValueError(f"{each} is no pattern")
            if each.first < 1 or each.second < 0:
                raise ValueError(f"{each} reads nothing")
    except (ModelError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"{path} is damaged ({error}); search the patterns again") from error
    if found.fingerprint != fingerprint(model):
        raise ModelError(
            f"the patterns in {directory} were searched on {found.base}, and this model, {base_name(model)}, has other "
            f"weights, perhaps an adapter's; search its own with: winnow diagnose patterns{dtype_hint(model)}"
        )
    config = model.config.get_text_config()
    if [len(heads) for heads in layers] != [config.num_attention_heads] * config.num_hidden_layers:
        raise ModelError(
            f"{path} is damaged (it has not a pattern for each of {config.num_hidden_layers} layers and "
            f"{config.num_attention_heads} query heads); search the patterns again"
        )
    return found
