"""A model said in words, so that a fresh process can load it too."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.shapes import random_model, shape_named
from winnow import LLM, Plan
from winnow.cli.options import ModelOptions
from winnow.devices import parse_device, parse_dtype
from winnow.errors import CapacityError


@dataclass(frozen=True)
class Source:
    """What to load, and how.

    shape: a name of `benchmarks.shapes`, whose random weights are taken instead of the model; such a model has at least
    `positions` positions, which its weights do not depend on. deterministic: as of `LLM`.
    """

    options: ModelOptions
    shape: str | None = None
    positions: int = 0
    deterministic: bool = False

    def load(self) -> LLM:
        """Raises what `LLM` raises, and InputError where there is no such shape."""
        given = self.options
        if self.shape is None:
            return given.load(deterministic=self.deterministic)
        if given.threads is not None:
            torch.set_num_threads(given.threads)
        dtype = parse_dtype(given.dtype) or torch.bfloat16
        model = random_model(shape_named(self.shape), dtype, parse_device(given.device))
        model.config.max_position_embeddings = max(model.config.max_position_embeddings, self.positions)
        return LLM(model, weights=given.weights, prefill_chunk=given.prefill_chunk, deterministic=self.deterministic)


def load_checked(source: Source, plans: Sequence[Plan], tokens: int) -> LLM:
    """The model, known to take `tokens` and to follow the plans; random weights are drawn for what fits only.

    Raises CapacityError or PlanError where it cannot, and what `Source.load` raises.
    """
    if source.shape is not None:
        _check_room(tokens, shape_named(source.shape).config().max_position_embeddings)
    llm = source.load()
    _check_room(tokens, llm.decoder.shape.max_positions)
    for plan in plans:
        llm.prepare(plan)
    return llm


def _check_room(tokens: int, most: int) -> None:
    if tokens > most:
        raise CapacityError(f"{tokens:,} tokens, cached and new, are more than the {most:,} positions; ask for fewer")
