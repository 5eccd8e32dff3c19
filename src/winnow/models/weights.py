"""What a checkpoint's headers say of its tensors, held against what the configuration needs, before memory is taken."""

import re
from collections.abc import Iterable
from typing import Any

import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from winnow.errors import ModelError, UnsupportedModelError
from winnow.models.config import one_line
from winnow.models.files import CONFIG, WAY_OUT

LAYER = re.compile(r"^model\.layers\.(\d+)\.")
SPARE = 2**22  # values that may be missing without the model being another one: a missing tensor is named later


def model_class(config: Any) -> Any:
    """transformers' own class of a causal language model with this configuration."""
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


def check_tensors(
    found: Iterable[tuple[str, list[int], str]], config: Any, name: str, *, complete: bool = False
) -> None:
    """Raise ModelError where the checkpoint is of another model: layers, shapes, far too few values.

    found: name, shape and dtype of every tensor. complete: each of the model's own names must be there, and no other;
    transformers renames those of some checkpoints while it loads them. Raises UnsupportedModelError for 8-bit floats,
    which are quantised.
    """
    shapes: dict[str, list[int]] = {}
    for tensor, shape, dtype in found:
        if dtype.startswith(("F8", "F4")):
            raise UnsupportedModelError(
                f"{name}: {tensor} is {dtype}, a quantised type that Winnow cannot run; {WAY_OUT}"
            )
        shapes[tensor] = shape
    held = {int(match[1]) for tensor in shapes if (match := LAYER.match(tensor))}
    if (layers := max(held, default=-1) + 1) != config.num_hidden_layers:
        raise ModelError(f"{name}: {CONFIG} says {config.num_hidden_layers} layers, and the weights hold {layers}")
    try:
        with torch.device("meta"):
            wanted = dict(model_class(config)(config).named_parameters())
    except Exception as error:  # what transformers makes of a wrong value depends on where it meets it
        raise ModelError(f"{name}: its {CONFIG} does not describe a model: {one_line(error)}") from error
    for tensor in wanted.keys() & shapes.keys():
        if list(wanted[tensor].shape) != shapes[tensor]:
            raise ModelError(
                f"{name}: {tensor} has the shape {shapes[tensor]}, and by {CONFIG} it has {list(wanted[tensor].shape)}"
            )
    if complete:
        tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
        missing, more = wanted.keys() - shapes.keys() - tied, shapes.keys() - wanted.keys()
        check_report({"missing_keys": missing, "unexpected_keys": more}, name)
    needed = sum(each.numel() for each in wanted.values())
    values = sum(torch.Size(shape).numel() for shape in shapes.values())
    if needed > 2 * values + SPARE:  # twice: tied tensors are held once, packed ones in bytes
        raise ModelError(f"{name}: {CONFIG} describes {needed:,} weights, and the checkpoint holds {values:,}")


def check_report(report: dict[str, Any], name: str) -> None:
    """Raise ModelError for tensors that the model lacks, or that it has no use for, as transformers reports them."""
    if missing := sorted(report["missing_keys"]):
        raise ModelError(f"{name}: the checkpoint lacks {len(missing)} tensors the model needs, such as {missing[0]}")
    if unexpected := sorted(report["unexpected_keys"]):
        raise ModelError(
            f"{name}: the checkpoint holds {len(unexpected)} tensors that the model of {CONFIG} has no use for, such "
            f"as {unexpected[0]}; it is another model's"
        )
