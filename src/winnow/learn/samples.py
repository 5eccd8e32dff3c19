"""Texts for retaining heads: what is the prompt of each, which can be used, and in which order they come."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from winnow.errors import InputError
from winnow.learn.chat import Conversation, read_conversations
from winnow.learn.labels import Sample
from winnow.runtime.llm import LLM

LEAST = 2  # tokens of a prompt: scores of neighbours are compared


@dataclass(frozen=True)
class Samples:
    """What a file gives to learn from, and what is said of it."""

    items: list[Sample]
    about: dict[str, Any]


def read_samples(llm: LLM, data: Path, least: int = LEAST) -> Samples:
    """The conversations of a file as samples. Those longer than the model's positions or without a prompt are left out.

    least: tokens of a prompt. Raises InputError, see `read_conversations`; also where none is left, or a token is not
    one of the model's.
    """
    if llm.tokenizer is None:
        raise InputError("the model has no tokenizer, so it cannot read text; give a directory with a tokenizer.json")
    shape = llm.decoder.shape
    read = read_conversations(data, llm.tokenizer, length=shape.max_positions)
    for each in read.items:
        if (largest := max(each.ids)) >= shape.vocab:
            raise InputError(f"{each.where}: token {largest}, and the model has {shape.vocab}; use its own tokenizer")
    items = [_sample(each) for each in read.items if each.turns[0].answer >= least]
    if not items:
        raise InputError(f"{data}: no prompt has {least} tokens; the prompt is what is learnt, so write longer ones")
    about = {
        "file": data.name,
        "samples": len(items),
        "too_long": read.too_long,
        "too_short": len(read.items) - len(items),
        "tokens": sum(len(each.ids) for each in items),
        "prompt_tokens": sum(each.prompt for each in items),
        "sha256": read.sha256,
    }
    return Samples(items, about)


def sample_order(count: int, seed: int) -> Iterator[int]:
    """Indices of `count` samples without an end: all of them in random order, again and again."""
    source = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(count, generator=source).tolist()


def _sample(conversation: Conversation) -> Sample:
    return Sample(conversation.ids, conversation.turns[0].answer)
