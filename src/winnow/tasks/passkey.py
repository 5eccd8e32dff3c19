"""Pass key: one five-digit key hidden in a long text."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from winnow.tasks.example import Example, reply_tokens, share_found
from winnow.tasks.fill import Needle, fill_with_text
from winnow.tasks.haystack import Haystack, resolve_haystack

QUESTION = "What is the pass key?"


def sentence(key: str) -> str:
    """The needle."""
    return f"The pass key is {key}. Remember it. {key} is the pass key."


def reply(key: str) -> str:
    """The answer in the wanted form."""
    return f"The pass key is {key}."


@dataclass(frozen=True)
class Passkey:
    """The pass key task of Landmark Attention, arXiv:2305.16300, with book text for its repeated filler sentences."""

    haystack: Haystack | str | Path | None = None  # the bundled text, or a directory of texts
    name: str = "passkey"

    def example(
        self, rng: random.Random, *, tokens: int, tokenizer: PreTrainedTokenizerBase, depth: float | None = None
    ) -> Example:
        """One example; see `Task.example`."""
        key = str(rng.randrange(10000, 100000))
        needle = Needle(sentence(key), rng.random() if depth is None else depth)
        limit = reply_tokens(reply(key), tokenizer)

        def build(context: str, depths: tuple[float, ...]) -> Example:
            return Example(context, QUESTION, reply(key), (key,), depths, limit)

        return fill_with_text(build, [needle], resolve_haystack(self.haystack), rng, tokens=tokens, tokenizer=tokenizer)

    def score(self, example: Example, text: str) -> float:
        """1 if the key is found, else 0."""
        return share_found(example, text)
