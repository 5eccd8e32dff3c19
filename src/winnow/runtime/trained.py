"""What is trained for a model and lies beside it: tensors, and a config that names the model they were trained on."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from winnow.errors import ModelError
from winnow.models.files import read_object, save_tensors
from winnow.models.finite import check_finite
from winnow.runtime.adapters import base_name, dtype_hint, fingerprint

CONFIG = "config.json"


class Config(Protocol):
    """A dataclass. base, fingerprint: of the model that a part was trained on."""

    @property
    def base(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...


Made = TypeVar("Made", bound=Config)


@dataclass(frozen=True)
class Kind:
    """A kind of trained part. name: what several of them are called; weights: the file of their tensors; train: the
    command that makes them."""

    name: str
    weights: str
    train: str

    @property
    def again(self) -> str:
        """What to do where a file is damaged."""
        return f"train the {self.name.split()[-1]} again"

    def save(self, directory: str | Path, config: Any, tensors: Mapping[str, Tensor]) -> None:
        """Write the tensors and `config.json`."""
        place = Path(directory)
        place.mkdir(parents=True, exist_ok=True)
        save_tensors({name: each.detach().cpu().contiguous() for name, each in tensors.items()}, place / self.weights)
        text = json.dumps(dataclasses.asdict(config), ensure_ascii=False, indent=2)
        (place / CONFIG).write_text(text + "\n", encoding="utf-8")

    def config(self, directory: str | Path, make: Callable[..., Made], check: Callable[[Made], None]) -> Made:
        """What `make` makes of the fields in a directory's config. check: raises ValueError where one is wrong.

        Raises ModelError where there is no such part, or it is damaged.
        """
        path = Path(directory) / CONFIG
        if not path.is_file() or not (Path(directory) / self.weights).is_file():
            raise ModelError(f"{directory} holds no {self.name}: it needs {self.weights} and {CONFIG}")
        try:
            found = make(**read_object(path))
            check(found)
        except (ModelError, ValueError, TypeError) as error:
            raise ModelError(f"{path} is damaged ({error}); {self.again}") from error
        return found

    def tensors(self, directory: str | Path, wanted: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """The tensors in a directory, on the CPU; wanted: their shapes. Raises ModelError where they are others."""
        try:
            tensors = load_file(Path(directory) / self.weights)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{directory}: {self.weights} is damaged ({error}); {self.again}") from error
        if {name: tuple(each.shape) for name, each in tensors.items()} != dict(wanted):
            raise ModelError(f"{directory}: {self.weights} does not hold what {CONFIG} says; {self.again}")
        check_finite(tensors.items(), f"the {self.name} in {directory}")
        return tensors

    def check_model(self, config: Config, model: PreTrainedModel) -> None:
        """Raise ModelError where a part was trained on another model."""
        if config.fingerprint != fingerprint(model):
            raise ModelError(
                f"the {self.name} were trained on {config.base}, and this model, {base_name(model)}, has other "
                f"weights, perhaps an adapter's; use those trained on it, or train some with: winnow train {self.train}"
                f"{dtype_hint(model)}"
            )


def are_counts(*values: object) -> bool:
    """Whether all of some numbers of a config are whole and above 0."""
    return all(isinstance(value, int) and value > 0 for value in values)
