"""Files of a model, read within bounds. Whatever a directory holds, nothing of it is run and no pickle is read."""

import errno
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from winnow.errors import ModelError, UnsupportedModelError

CONFIG, ADAPTER = "config.json", "adapter_config.json"
PACKED = "packed.json"  # what `winnow.models.gguf.directory` says of a converted GGUF file
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
JSON_BYTES = 2**26  # the most that is read of a file of settings; the index of a model of 10,000 tensors has 1 MB
TEXT_BYTES = 2**29  # the most that is handed to a tokenizer; a tokenizer.json of 260,000 tokens has 33 MB
WAY_OUT = "use the unquantised checkpoint, or a GGUF file of the model"
TEXTS = (".json", ".txt", ".model", ".jinja")


def asset(name: str) -> Path:
    """Where something that ships with the package would lie; it need not be there."""
    return Path(str(resources.files("winnow"))) / "assets" / name


def is_directory(path: str | Path) -> bool:
    """Whether there is a directory of that name; False, too, for a name that no file system takes."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def find_part(source: str | Path, kind: str, file: str) -> Path:
    """The directory of a trained part: a local one, or a bundled one by its name or its model's.

    kind: what follows the model in a bundled name. file: what it has to hold; where none does, the directory `source`.
    """
    places = (Path(source), asset(str(source)), asset(f"{source}-{kind}"))
    return next((place for place in places if is_directory(place) and (place / file).is_file()), places[0])


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write a file of tensors. Raises OSError, as when the disk is full."""
    with os_errors(path):
        save_file(dict(tensors), path, metadata={"format": "pt"})


@contextmanager
def os_errors(path: Path) -> Iterator[None]:
    """Raise OSError for what safetensors, tokenizers and torch make of one. path: what is read or written."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        said = str(error)
        if "inline_container" in said or "PytorchStreamWriter" in said:  # torch.save gives no why
            raise OSError(errno.EIO, "it could not be written to its end; is the disk full?", str(path)) from error
        found = re.search(r"\(os error (\d+)\)|unable to (?:open|mmap) .*\((\d+)\)$", said)
        if found is None:
            raise
        number = int(found[1] or found[2])
        raise OSError(number, os.strerror(number), str(path)) from error


def replace_text(path: Path, text: str) -> None:
    """Put a whole text in a file's place at once: one that is stopped leaves what was there. Raises OSError."""
    path = path.resolve()  # of a symbolic link what it leads to
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def is_converted(directory: Path) -> bool:
    """Whether a directory holds a converted GGUF file."""
    return (directory / PACKED).is_file()


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ModelError where it is no regular file, is too large, or holds none."""
    check_regular(path, JSON_BYTES)
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is damaged: it is not JSON ({error}); download it again") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} is damaged: it holds a JSON {type(found).__name__}, not an object; download it again")
    return found


def check_regular(path: Path, limit: int | None = None) -> None:
    """Raise ModelError unless `path` leads to a regular file, of at most `limit` bytes."""
    try:
        found = path.stat()
    except OSError as error:
        what = "is a symbolic link that leads nowhere" if path.is_symlink() else f"cannot be read: {error.strerror}"
        raise ModelError(f"{path} {what}; download it again") from error
    if not stat.S_ISREG(found.st_mode):
        raise ModelError(f"{path} is not a regular file; download it again")
    if limit is not None and found.st_size > limit:
        raise ModelError(f"{path} has {found.st_size:,} bytes, more than the {limit:,} that such a file may have")


def check_directory(directory: Path) -> None:
    """Raise ModelError where a file that would be read is none: a device, a pipe, a link to nowhere, far too large."""
    try:
        entries = [Path(entry.path) for entry in os.scandir(directory)]
    except OSError as error:
        raise ModelError(f"cannot read {directory}: {error.strerror}") from error
    for path in sorted(entries):
        if path.suffix in (*TEXTS, ".safetensors"):
            check_regular(path, TEXT_BYTES if path.suffix in TEXTS else None)


def weight_files(directory: Path, name: str) -> list[Path]:
    """The safetensors files that hold a model's weights. name: of the model, for messages.

    Raises ModelError where there are none, or where an index names a file of another kind, place or none.
    """
    if (directory / WEIGHTS).exists():
        return [directory / WEIGHTS]
    if not (directory / INDEX).exists():
        raise ModelError(f"{name} holds no {WEIGHTS}{no_pickles(directory)}")
    shards = read_object(directory / INDEX).get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(shard, str) for shard in shards.values()):
        raise ModelError(f"{directory / INDEX} is damaged: it has no weight_map of file names; download it again")
    names = sorted(set(shards.values()))
    for each in names:
        if Path(each).name != each or not each.endswith(".safetensors"):
            raise ModelError(f"{directory / INDEX} names {each!r}, which is no safetensors file beside it")
        check_regular(directory / each)
    return [directory / each for each in names]


def no_pickles(directory: Path) -> str:
    """The end of a message about weights that are not there: whether there are pickled ones, and the way out."""
    if not (pickled := sorted(path.name for path in directory.iterdir() if path.suffix in PICKLED)):
        return "; download it again"
    return (
        f", only {pickled[0]}, a pickle: reading it could run code, so it is never read; where you trust it, load it "
        "with transformers and save_pretrained it as safetensors"
    )


def tensors(files: list[Path]) -> Iterator[tuple[str, list[int], str]]:
    """Name, shape and dtype of every tensor, from the files' headers. Raises ModelError where a file is damaged."""
    for path in files:
        try:
            # Not torch's way of mapping a file, which counts as memory: it may be larger than what there is.
            with safe_open(path, framework="numpy") as file:
                for name in file.keys():  # noqa: SIM118 (it is no mapping)
                    found = file.get_slice(name)
                    yield name, list(found.get_shape()), str(found.get_dtype())
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} is damaged or cut short ({error}); download it again") from error


def check_quantised(settings: dict[str, Any], name: str) -> None:
    """Raise UnsupportedModelError, naming the method, for a checkpoint whose weights are quantised some way of its own.

    gpt_oss is published in mxfp4, which transformers dequantises by itself.
    """
    found = settings.get("quantization_config") or settings.get("compression_config")
    if not found:
        return
    method = found.get("quant_method") if isinstance(found, dict) else None
    if method is None and isinstance(found, dict):
        method = next((kind for kind in ("load_in_4bit", "load_in_8bit") if found.get(kind)), None)
        method = method and "bitsandbytes"
    if (settings.get("model_type"), method) != ("gpt_oss", "mxfp4"):
        raise UnsupportedModelError(
            f"{name}: its weights are quantised ({str(method or 'quantization_config')[:40]}), which Winnow cannot run"
            f"; {WAY_OUT}"
        )
