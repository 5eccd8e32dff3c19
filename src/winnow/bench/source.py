"""A model said in words, so that a fresh process can load it too."""

from dataclasses import dataclass

import torch
from transformers.utils import logging as transformers_logging

from winnow.bench.shapes import random_model, shape_named
from winnow.runtime.llm import LLM
from winnow.runtime.loading import parse_device, parse_dtype


@dataclass(frozen=True)
class Source:
    """What to load, as in `LLM`; without chatter on standard error.

    shape: a name of `bench.shapes`, whose random weights are taken instead of `model`; such a model has at least
    `positions` positions, which its weights do not depend on.
    """

    model: str
    shape: str | None = None
    positions: int = 0
    device: str | None = None
    dtype: str | None = None
    threads: int | None = None
    prefill_chunk: int = 512

    def load(self) -> LLM:
        """Raises what `LLM` raises, and InputError where there is no such shape."""
        transformers_logging.disable_progress_bar()
        transformers_logging.set_verbosity_error()
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        if self.shape is None:
            return LLM(self.model, device=self.device, dtype=self.dtype, prefill_chunk=self.prefill_chunk)
        dtype = parse_dtype(self.dtype) or torch.bfloat16
        model = random_model(shape_named(self.shape), dtype, parse_device(self.device))
        model.config.max_position_embeddings = max(model.config.max_position_embeddings, self.positions)
        return LLM(model, prefill_chunk=self.prefill_chunk)
