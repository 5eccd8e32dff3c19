"""Load a model and its tokenizer, with one clear error for each way that can go wrong."""

from importlib import resources
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from winnow.errors import ModelError, UnsupportedModelError
from winnow.runtime.families import check_config

BUNDLED = ("needle",)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def load(
    source: str | Path, *, device: torch.device, dtype: torch.dtype | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """The model and tokenizer of `source`: a bundled name, a local directory, or a hub id.

    dtype None: the checkpoint's own. The tokenizer is None where the directory has none.
    Raises ModelError for what is missing or damaged, UnsupportedModelError for an architecture Winnow does not know.
    """
    path = str(asset(str(source)) if source in BUNDLED else source)
    _check_directory(path)
    config = _config(path)
    check_config(config, str(source))
    return _weights(path, config, device, dtype), _tokenizer(path)


def asset(name: str) -> Path:
    """Where something that ships with the package would lie; it need not be there."""
    return Path(str(resources.files("winnow"))) / "assets" / name


def parse_dtype(name: str | torch.dtype | None) -> torch.dtype | None:
    """`"bfloat16"` -> torch.bfloat16. Raises ModelError for a dtype that models are not run in."""
    if name is None or name in DTYPES.values():
        return name  # type: ignore[return-value]
    if name not in DTYPES:
        raise ModelError(f"dtype {name!r} is unknown; use {', '.join(DTYPES)}")
    return DTYPES[name]


def parse_device(name: str | torch.device | None) -> torch.device:
    """The device of that name; None: CUDA where there is one, else the CPU. Raises ModelError if it is not there."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"device {name!r} is unknown; use cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise ModelError(f"device {str(name)!r} is not supported; use cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {str(name)!r} was asked for, but torch sees no GPU here; use cpu")
    return device


def move(model: PreTrainedModel, device: torch.device, dtype: torch.dtype | None) -> PreTrainedModel:
    """The same model on `device`, cast in place to `dtype` if one is given.

    Rotary frequencies stay in float32, as they are when a checkpoint is loaded in another dtype: cast, they are off by
    more than a radian a few thousand positions on.
    """
    rotary = getattr(model.model, "rotary_emb", nn.Module())
    exact = {name: buffer.clone() for name, buffer in rotary.named_buffers()}
    nn.Module.to(model, device=device, dtype=dtype)
    for name, buffer in exact.items():
        setattr(rotary, name, buffer.to(device))
    return model


def _check_directory(path: str) -> None:
    place = Path(path)
    looks_local = place.is_absolute() or path.startswith(".") or path.count("/") > 1 or place.exists()
    if looks_local and not place.is_dir():
        raise ModelError(f"{path} is not a directory; give a model directory, a hub id, or {', '.join(BUNDLED)}")
    if place.is_dir() and not (place / "config.json").is_file():
        raise ModelError(f"{path} holds no model: there is no config.json in it")


def _config(path: str) -> Any:
    try:
        return AutoConfig.from_pretrained(path)
    except OSError as error:
        raise ModelError(
            f"{path} is neither a directory nor a model that can be downloaded: {_first(error)}"
        ) from error
    except (ValueError, KeyError) as error:
        raise UnsupportedModelError(
            f"{path}: its config.json is not one transformers knows: {_first(error)}"
        ) from error


def _weights(path: str, config: Any, device: torch.device, dtype: torch.dtype | None) -> PreTrainedModel:
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=dtype or "auto", output_loading_info=True
        )
    except SafetensorError as error:
        raise ModelError(f"{path}: a safetensors file is damaged or cut short ({error}); download it again") from error
    except (OSError, RuntimeError, ValueError, LookupError, EOFError, UnpicklingError) as error:
        raise ModelError(f"{path}: its weights cannot be loaded: {_first(error)}") from error
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise ModelError(f"{path}: the checkpoint lacks {len(missing)} tensors the model needs, such as {missing[0]}")
    return move(model, device, None)


def _tokenizer(path: str) -> PreTrainedTokenizerBase | None:
    names = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
    if Path(path).is_dir() and not any((Path(path) / name).is_file() for name in names):
        return None
    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelError(f"{path}: its tokenizer cannot be loaded: {_first(error)}") from error


def _first(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
