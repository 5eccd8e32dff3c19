"""`config.json` and `generation_config.json`, checked before anything is built from them."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from winnow.errors import ModelError
from winnow.models.files import CONFIG, check_quantised, read_object
from winnow.runtime.families import check_config, check_model_type

# What would choose code rather than describe a model: classes in the directory, attention kernels from a hub.
CODE = (
    "auto_map",
    "custom_pipelines",
    *(f"{start}{name}" for start in ("", "_") for name in ("attn_implementation", "experts_implementation")),
    *(f"_{name}_internal" for name in ("attn_implementation", "experts_implementation")),
)
NAMES = ("_name_or_path", "name_or_path", "_commit_hash")
COUNTS = (
    "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "max_position_embeddings", "original_max_position_embeddings", "sliding_window", "num_experts",
    "num_local_experts", "num_experts_per_tok", "moe_intermediate_size",
)  # fmt: skip
LARGEST = 2**31 - 1
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def read_config(directory: Path, name: str) -> Any:
    """The configuration of a model directory. name: of the model, for messages.

    A class of the directory's own (`auto_map`) is never looked at: a known `model_type` is transformers' own class.
    Raises ModelError where the file is damaged, UnsupportedModelError where the model cannot be run.
    """
    settings = read_object(directory / CONFIG)
    kind = check_model_type(settings.get("model_type"), name)
    check_quantised(settings, name)
    for key in COUNTS:
        if (count := settings.get(key)) is not None and not _is_count(count):
            raise ModelError(f"{name}: {key}={_short(count)} in {CONFIG} must be a whole number from 1 to {LARGEST}")
    for key, number in _numbers(settings):
        if not math.isfinite(number):
            raise ModelError(f"{name}: {key}={number} in {CONFIG} must be a finite number")
    described = CONFIG_MAPPING[kind]
    for key in settings:
        if callable(getattr(described, key, None)):
            raise ModelError(f"{name}: {key!r} in {CONFIG} is no setting")
    kept = {key: value for key, value in settings.items() if key not in (*CODE, *NAMES)}
    try:
        config: Any = described.from_dict(kept)
        check_config(config, name)
    except ModelError:
        raise
    except Exception as error:  # what transformers makes of a wrong value depends on where it meets it
        raise ModelError(f"{name}: its {CONFIG} does not describe a model: {one_line(error)}") from error
    if config.dtype not in (None, *DTYPES):
        raise ModelError(f"{name}: dtype={_short(config.dtype)} in {CONFIG} is none that models are run in")
    config.name_or_path = name  # by some names transformers knows that a tokenizer's files are wrong
    return config


def check_generation(directory: Path, vocab: int, name: str) -> None:
    """Raise ModelError where generation_config.json is there and damaged, or names end tokens that there are not."""
    path = directory / "generation_config.json"
    if not path.exists() and not path.is_symlink():
        return
    settings = read_object(path)
    found = settings.get("eos_token_id")
    ends = found if isinstance(found, list) else [found]
    for end in ends:
        if end is not None and (not isinstance(end, int) or isinstance(end, bool) or not 0 <= end < vocab):
            raise ModelError(f"{name}: eos_token_id={_short(found)} in {path.name} must be ids from 0 to {vocab - 1}")
    try:
        GenerationConfig.from_dict(settings)
    except Exception as error:  # as above
        raise ModelError(f"{name}: its {path.name} cannot be used: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """The first lines of an error, joined; transformers puts the cause on the second."""
    return _short(" ".join(" ".join(str(error).split("\n")[:2]).split()) or type(error).__name__, 300)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every float in nested settings, by its name."""
    if isinstance(value, float):
        yield name, value
    elif isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _numbers(item, f"{name}.{key}" if name else str(key))


def _short(value: Any, longest: int = 60) -> str:
    text = value if isinstance(value, str) and longest > 60 else repr(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"
