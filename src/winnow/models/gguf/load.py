"""A model from a GGUF file, or from a directory that was made of one."""

import errno
import logging
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.initialization import no_init_weights

from winnow.errors import ModelError
from winnow.kernels.packed import PackedWeight, expand
from winnow.models.config import check_generation, one_line, read_config
from winnow.models.files import check_directory, os_errors
from winnow.models.finite import check_finite
from winnow.models.gguf.cache import content_hash, entry_of
from winnow.models.gguf.config import config_of
from winnow.models.gguf.convert import Held, Progress, silent, tensors_of
from winnow.models.gguf.directory import read_record, read_tensors, write_directory
from winnow.models.gguf.generation import generation_of
from winnow.models.gguf.header import Header, read_header
from winnow.models.gguf.tokenizer import tokenizer_of
from winnow.models.packed import put_packed
from winnow.models.weights import check_tensors
from winnow.runtime.families import check_config

log = logging.getLogger(__name__)

# What keeps a file from being read that is as good as it was.
BARRED = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


@dataclass(frozen=True)
class FromFile:
    """types: of the tensors in the GGUF file, by their names in the model. file_bytes: of that file."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    types: dict[str, str]
    file_bytes: int


def load_gguf(path: Path, dtype: torch.dtype, *, dense: bool, progress: Progress = silent) -> FromFile:
    """The model and tokenizer of a GGUF file, through the cache of converted files. dtype: of what is not packed.

    dense: expand packed weights to floats. progress: called while the file is converted, with the number of values just
    converted and that of all. Raises ModelError, UnsupportedModelError: see `read_header`, `config_of`,
    `tokenizer_of` and `tensors_of`.
    """
    header = read_header(path)  # before the file is hashed: it may be none, or never end
    config_of(header)  # likewise: it may be of an architecture that is not supported
    entry = entry_of(path)
    if os.path.isdir(entry):  # False, where Path raises, in a folder that cannot be searched
        try:
            return load_directory(entry, dtype, dense=dense)
        except ModelError as error:
            if isinstance(cause := error.__cause__, OSError) and cause.errno in BARRED:
                raise ModelError(
                    f"the converted copy of {path.name} cannot be read ({entry}: {cause.strerror}); try again, or set "
                    "WINNOW_CACHE to another folder"
                ) from error
            log.warning("the converted copy of %s is damaged and is made again: %s", path.name, error)
            shutil.rmtree(entry, ignore_errors=True)
    parts = _parts(header)
    try:
        import_gguf(path, entry, progress)
    except OSError as error:
        reason = error.strerror or error
        log.warning("%s cannot be kept converted (%s: %s), so every load converts it", path.name, entry.parent, reason)
        config, tokenizer, generation = parts
        tensors = tensors_of(header, config, progress)
        model, types = _built(config, generation, tensors, dtype, dense)
        return FromFile(model, tokenizer, types, path.stat().st_size)
    return load_directory(entry, dtype, dense=dense)


def import_gguf(path: Path, directory: Path, progress: Progress = silent) -> None:
    """Convert a GGUF file into a directory that `load_directory` reads; it appears whole or not at all.

    Raises ModelError as `load_gguf`, and OSError where the directory cannot be written.
    """
    header = read_header(path)
    config, tokenizer, generation = _parts(header)
    source = {"name": path.name, "sha256": content_hash(path), "bytes": path.stat().st_size}
    write_directory(directory, config, tokenizer, generation, tensors_of(header, config, progress), source)


def load_directory(directory: Path, dtype: torch.dtype, *, dense: bool) -> FromFile:
    """What `import_gguf` wrote. Raises ModelError where it is damaged."""
    check_directory(directory)
    record, config = read_record(directory), read_config(directory, str(directory))
    check_generation(directory, config.vocab_size, str(directory))
    held = list(read_tensors(directory, record))
    check_tensors(((name, list(each.value.shape), "") for name, each in held), config, str(directory), complete=True)
    check_finite(((name, each.value) for name, each in held if isinstance(each.value, Tensor)), str(directory))
    try:
        generation = GenerationConfig.from_pretrained(directory)
        with os_errors(directory):
            tokenizer = AutoTokenizer.from_pretrained(
                directory, config=config, local_files_only=True, trust_remote_code=False
            )
        tokenizer("a")
    except Exception as error:  # a damaged file makes anything of transformers and tokenizers
        raise ModelError(f"{directory}: is damaged ({one_line(error)}); import the GGUF file again") from error
    model, types = _built(config, generation, held, dtype, dense)
    return FromFile(model, tokenizer, types, int(record["source"]["bytes"]))


def _parts(header: Header) -> tuple[PreTrainedConfig, PreTrainedTokenizerBase, GenerationConfig]:
    config = config_of(header)
    config.name_or_path = header.path.stem
    check_config(config, header.path.name)
    tokenizer = tokenizer_of(header)
    return config, tokenizer, generation_of(header, tokenizer)


def _built(
    config: PreTrainedConfig,
    generation: GenerationConfig,
    tensors: Iterable[tuple[str, Held]],
    dtype: torch.dtype,
    dense: bool,
) -> tuple[PreTrainedModel, dict[str, str]]:
    """The model, and the types that its tensors have in the file."""
    with no_init_weights():
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    types: dict[str, str] = {}
    for name, held in tensors:
        types[name] = held.type
        owner, _, last = name.rpartition(".")
        if isinstance(value := held.value, PackedWeight):
            if not dense:
                put_packed(model, owner, value, dtype)
                continue
            value = expand(value, dtype)
        setattr(model.get_submodule(owner), last, nn.Parameter(value.to(dtype), requires_grad=dense))
    if config.tie_word_embeddings:
        embedding = model.get_input_embeddings()
        if packed := getattr(embedding, "packed", None):
            put_packed(model, "lm_head", packed, dtype)
        else:
            model.lm_head.weight = embedding.weight
    model.generation_config = generation
    return model.eval(), types
