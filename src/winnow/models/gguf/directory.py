"""A converted model: a directory with transformers' own configuration and tokenizer, and packed tensors.

model-*.safetensors   floats under their names; a packed weight in tiles, as [rows, row_bytes] uint8
packed.json           what each tensor is: {"format", "source": {"name", "sha256", "bytes"}, "files": {name: bytes},
                      "tensors": {name: {"type"} or {"type", "kind", "minima", "columns", "rows"}}}
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

from winnow.errors import ModelError
from winnow.kernels.packed import KINDS, PackedWeight
from winnow.models.files import PACKED, os_errors, read_object, save_tensors
from winnow.models.gguf.convert import SHARD, Held

FORMAT = 3  # of packed.json and of what the converter makes: a file converted by another is converted again


def write_directory(
    directory: Path,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    generation: GenerationConfig,
    tensors: Iterable[tuple[str, Held]],
    source: dict[str, Any],
) -> None:
    """Write a converted model; `directory` appears whole or not at all. Raises OSError, as when the disk is full."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        config.save_pretrained(made)
        generation.save_pretrained(made)
        with os_errors(made):
            tokenizer.save_pretrained(made)
        facts = _write_tensors(made, tensors)
        files = {path.name: path.stat().st_size for path in sorted(made.iterdir())}
        record = {"format": FORMAT, "source": source, "files": files, "tensors": facts}
        (made / PACKED).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        made.chmod(0o755)
        try:
            os.rename(made, directory)
        except OSError:
            if not (directory / PACKED).is_file():  # else another process was faster, and its work is as good
                raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _write_tensors(made: Path, tensors: Iterable[tuple[str, Held]]) -> dict[str, dict[str, Any]]:
    facts: dict[str, dict[str, Any]] = {}
    waiting: dict[str, Tensor] = {}
    shards = 0

    def flush() -> None:
        nonlocal shards
        save_tensors(waiting, made / f"model-{shards:05d}.safetensors")
        waiting.clear()
        shards += 1

    for name, held in tensors:
        facts[name] = {"type": held.type}
        if isinstance(value := held.value, PackedWeight):
            facts[name] |= {"kind": value.kind, "minima": value.minima, "columns": value.columns, "rows": value.tiled}
        waiting[name] = value.data if isinstance(value, PackedWeight) else value.contiguous()
        if sum(tensor.nbytes for tensor in waiting.values()) > SHARD:
            flush()
    flush()
    return facts


def read_record(directory: Path) -> dict[str, Any]:
    """packed.json of a converted model, checked against the files beside it.

    Raises ModelError where it is damaged, of another format, or a file beside it is missing or has another size.
    """
    path = directory / PACKED
    try:
        record = read_object(path)
        if record["format"] != FORMAT:
            raise ModelError(f"{directory}: was converted by another version of Winnow; import the GGUF file again")
        if type(record["source"]["bytes"]) is not int:
            raise ValueError("the bytes of its source are no number")
        for name, size in record["files"].items():
            if (directory / name).stat().st_size != size:
                raise ValueError(f"{name} does not have {size:,} bytes")
        for facts in record["tensors"].values():
            if "kind" not in facts:
                continue
            if not (facts["kind"] in range(len(KINDS)) and facts["columns"] % 32 == 0 and type(facts["rows"]) is int):
                raise ValueError("a packed tensor of an unknown kind")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelError(f"{directory}: is damaged ({error}); import the GGUF file again") from error
    return dict(record)


def read_tensors(directory: Path, record: dict[str, Any]) -> Iterator[tuple[str, Held]]:
    """Every tensor of a converted model, mapped from its file. Raises ModelError where a file is damaged."""
    facts = dict(record["tensors"])
    try:
        for path in sorted(directory.glob("model-*.safetensors")):
            with os_errors(path), safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    mine = facts.pop(name)
                    value = file.get_tensor(name)
                    if "kind" in mine:
                        form = mine["columns"], mine["kind"], mine["minima"], mine["rows"]
                        value = PackedWeight(value, *form).checked()
                    yield name, Held(value, mine["type"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ModelError(f"{directory}: its tensors are damaged ({error}); import the GGUF file again") from error
    if facts:
        raise ModelError(f"{directory}: lacks {len(facts)} tensors, such as {min(facts)}; import the GGUF file again")
