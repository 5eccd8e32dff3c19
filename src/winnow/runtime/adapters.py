"""What was trained under a plan: adapters and whole models, and the `winnow.json` that says what they are for."""

import hashlib
import json
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel

from winnow.errors import MissingExtraError, ModelError, PlanError
from winnow.models.files import ADAPTER, asset, check_directory, is_directory, no_pickles, read_object
from winnow.models.finite import check_finite
from winnow.models.hub import cached, download
from winnow.models.low_rank import attach
from winnow.models.packed import is_packed, named_weights
from winnow.plan import Plan
from winnow.policies.base import ModelShape

METADATA = "winnow.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
SAMPLE = 256  # values of each parameter that a fingerprint looks at
ADAPTED = "winnow_adapted"  # an attribute of models with an adapter
# What its weights are multiplied by, of an adapter's settings.
SCALED_BY = ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "fan_in_fan_out", "use_dora")


@dataclass(frozen=True)
class Adapted:
    """A model with an adapter. name: of the adapter, as `asked_name` has it; values: the fingerprint of its weights as
    they are then; both: that of the two, apart."""

    name: str
    values: str
    both: str


@dataclass(frozen=True)
class Trained:
    """What a model or adapter was trained for; plan None: nothing is known, so nothing is refused."""

    name: str
    plan: Plan | None = None

    def check(self, plan: Plan, shape: ModelShape) -> None:
        """Raise PlanError where a plan computes the prompt otherwise than in training.

        Full attention is not refused: it is what plans are compared with. What was trained at full depth is like any
        other model: it takes every plan.
        """
        if self.plan is None or self.plan.is_full or plan.compute.identity:
            return
        if plan.compute.resolved(shape) != self.plan.compute.resolved(shape):
            raise PlanError(
                f"{self.name} was trained for {self.plan}, and the plan is {plan}; use the plan it was trained for, or "
                "train another for this one"
            )


def fingerprint(model: PreTrainedModel) -> str:
    """The SHA-256 of a model's parameters: of all names and shapes, and of `SAMPLE` values of each.

    Values are rounded to bfloat16 first, so a checkpoint has the same fingerprint in bfloat16 as in float32, and the
    same packed as dense. With an adapter that `load_adapter` has loaded it is of the model without it and of the
    adapter, merged or beside packed weights, as long as no weight has changed since.
    """
    now = _of_values(model)
    adapted = _adapted(model, now)
    return now if adapted is None else adapted.both


def adapter_name(model: PreTrainedModel) -> str | None:
    """What its adapter is called, None for a model without one, or whose weights have changed since."""
    adapted = _adapted(model, _of_values(model))
    return None if adapted is None else adapted.name


def _adapted(model: PreTrainedModel, now: str) -> Adapted | None:
    adapted: Adapted | None = getattr(model, ADAPTED, None)
    return None if adapted is None or adapted.values != now else adapted


def _of_values(model: PreTrainedModel) -> str:
    digest = hashlib.sha256()
    for name, weight in sorted(named_weights(model), key=lambda named: named[0]):
        size = weight.shape.numel() if isinstance(weight, torch.Tensor) else weight.shape[0] * weight.shape[1]
        index = torch.linspace(0, size - 1, min(SAMPLE, size), dtype=torch.float64).long()
        if isinstance(weight, torch.Tensor):
            values = weight.detach().flatten()[index.to(weight.device)]
        else:
            values = weight.at(index.to(weight.data.device))
        digest.update(f"{name} {tuple(weight.shape)}\n".encode() + _rounded(values))
    return digest.hexdigest()


def adapter_fingerprint(without: str, directory: Path) -> str:
    """The SHA-256 of a model whose fingerprint is `without`, and of all values of the adapter in `directory`, and how
    they are scaled."""
    settings = read_object(directory / ADAPTER)
    scaled = {name: settings[name] for name in SCALED_BY if settings.get(name)}
    digest = hashlib.sha256(f"{without} {json.dumps(scaled, sort_keys=True)}\n".encode())
    for name, values in sorted(load_file(directory / ADAPTER_WEIGHTS).items()):
        digest.update(f"{name} {tuple(values.shape)}\n".encode() + _rounded(values))
    return digest.hexdigest()


def _rounded(values: torch.Tensor) -> bytes:
    return values.cpu().bfloat16().float().numpy().tobytes()


def base_name(model: PreTrainedModel) -> str:
    """What to call a model in files that travel: its hub id, or the name of its directory, never a path."""
    source = model.config.name_or_path
    return asked_name(source) if source else type(model).__name__


def asked_name(source: str | Path) -> str:
    """What was asked for, in files that travel: a hub id as it is, of a path the last part."""
    return Path(source).absolute().name if Path(source).exists() else str(source)


def dtype_hint(model: PreTrainedModel) -> str:
    """The end of a message about weights that differ: a fingerprint is of bfloat16, which float16 has rounded away."""
    return "; in float16 a model may not be recognised, load it in bfloat16" if model.dtype == torch.float16 else ""


def trained_in(source: str | Path) -> Trained | None:
    """What the `winnow.json` of a model or adapter says, None where there is none.

    source: a directory, or a hub id that was downloaded before.
    Raises ModelError where the file is damaged.
    """
    directory = Path(source) if is_directory(source) else cached(str(source))
    if directory is None:
        return None
    record = read_metadata(directory)
    return None if record is None else Trained(Path(source).name, Plan.parse(record["plan"]))


def read_metadata(directory: Path) -> dict[str, Any] | None:
    """The record that training left in a directory, None where there is none. Raises ModelError if it is damaged."""
    path = directory / METADATA
    if not path.is_file():
        return None
    try:
        record = read_object(path)
        Plan.parse(record["plan"])
        complete = all(isinstance(record["base"][key], str) for key in ("name", "fingerprint"))
    except (ValueError, LookupError, TypeError, PlanError) as error:
        raise ModelError(f"{path} is damaged ({error}); download it again, or train again") from error
    if not complete:
        raise ModelError(f"{path} is damaged (base needs a name and a fingerprint); download it again, or train again")
    return dict(record)


def find_adapter(source: str | Path) -> Path:
    """The directory of an adapter: a local one, a bundled one by its name, or a hub id, which is downloaded.

    Raises ModelError where there is no adapter, MissingExtraError where peft is not installed.
    """
    need_train_extra()
    place = next((path for path in (Path(source), asset(str(source))) if is_directory(path)), None)
    if place is None and (Path(source).is_absolute() or str(source).startswith(".") or str(source).count("/") > 1):
        raise ModelError(f"{source} is not a directory; give an adapter's directory, a bundled name, or a hub id")
    if place is None:
        place = download(str(source), ("adapter_*", METADATA), ADAPTER)
    if not (place / ADAPTER).is_file():
        raise ModelError(f"{source} holds no adapter: there is no {ADAPTER} in it")
    check_directory(place)
    if not (place / ADAPTER_WEIGHTS).is_file():
        raise ModelError(f"{source} holds no {ADAPTER_WEIGHTS}{no_pickles(place)}")
    return place


def record_for(model: PreTrainedModel, without: str, directory: Path, name: str) -> dict[str, Any] | None:
    """The record of an adapter for `model`, whose fingerprint is `without`; None where there is none.

    Raises ModelError where it is of another model.
    """
    record = read_metadata(directory)
    if record is not None and record["base"]["fingerprint"] != without:
        raise ModelError(
            f"the adapter {name} was trained on {record['base']['name']}, and this model, "
            f"{model.config.name_or_path or type(model).__name__}, has other weights; load it with its own"
            f"{dtype_hint(model)}"
        )
    return record


def load_adapter(model: PreTrainedModel, directory: Path, name: str) -> Trained:
    """Merge the adapter in `directory` into `model`, in place, or put it beside packed weights, which it cannot change.

    Sums are rounded once, to the model's dtype. name: of the adapter, as `asked_name` has it.

    Raises ModelError where it is damaged, cannot be merged, or was trained on another model, and where the model has
    one already: then it would be merged into what that has made of it.
    """
    if (before := adapter_name(model)) is not None:
        raise ModelError(f"this model has the adapter {before} already; load the model anew for {name}")
    without = fingerprint(model)
    record = record_for(model, without, directory, name)
    (attach if is_packed(model) else _merge)(model, directory)
    setattr(model, ADAPTED, Adapted(name, _of_values(model), adapter_fingerprint(without, directory)))
    return Trained(name, None if record is None else Plan.parse(record["plan"]))


def _merge(model: PreTrainedModel, directory: Path) -> None:
    from peft import PeftConfig, PeftModel, get_peft_model_state_dict
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import load_peft_weights

    settings = read_object(directory / ADAPTER)
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    first, last = (getattr(each, "weight", None) for each in ends)
    tied = first if first is last else None
    if settings.get("megatron_config"):  # peft would import the module that megatron_core names
        raise ModelError(f"{directory}: the adapter is for Megatron, which Winnow does not run")
    try:
        weights = load_peft_weights(str(directory), device="cpu")
        check_finite(weights.items(), f"the adapter {directory.name}")
        if PeftConfig.from_pretrained(str(directory)).is_prompt_learning:
            raise ModelError(f"the adapter {directory.name} is a learnt prompt, which cannot be merged; train LoRA")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of peft about transformers
            adapted = PeftModel.from_pretrained(model, str(directory))
    except (SafetensorError, OSError, ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        for layer, module in list(model.named_modules()):  # what peft has put in before it failed
            if isinstance(module, BaseTunerLayer):
                model.set_submodule(layer, module.get_base_layer())
        raise ModelError(f"{directory}: the adapter cannot be loaded into this model: {_first(error)}") from error
    if missing := get_peft_model_state_dict(adapted, save_embedding_layers=False).keys() - weights.keys():
        adapted.unload()
        raise ModelError(f"{directory}: the adapter lacks {len(missing)} tensors, such as {min(missing)}")
    layers = [module.get_base_layer() for module in adapted.modules() if isinstance(module, BaseTunerLayer)]
    if tied is not None and any(getattr(layer, "weight", None) is tied for layer in layers):
        adapted.unload()
        raise ModelError(
            f"{directory}: the adapter changes the embeddings or the output layer, and in this model these are one "
            "tensor, so that both would change; train it without them"
        )
    try:
        adapted.merge_and_unload()
    except (NotImplementedError, ValueError, RuntimeError) as error:
        adapted.unload()
        raise ModelError(f"{directory}: the adapter cannot be merged: {_first(error)}") from error


def need_train_extra() -> None:
    """Raise MissingExtraError where peft or accelerate is not installed."""
    if missing := [name for name in ("accelerate", "peft") if find_spec(name) is None]:
        raise MissingExtraError(
            f"training and adapters need {' and '.join(missing)}; install winnow with its extra 'train'"
        )


def _first(error: Exception) -> str:
    """The line of a message that says what is wrong: of torch's lists of shapes the first; peft names a bare key."""
    if isinstance(error, KeyError):
        return f"its config lacks {error}, or has a value that peft does not know"
    lines = [line.strip() for line in str(error).strip().split("\n")]
    return next((line for line in lines if line.startswith("size mismatch")), lines[0])
